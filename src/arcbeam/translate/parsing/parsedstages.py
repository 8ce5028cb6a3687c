"""The SDK's stages after all phases, parsed: reads, writes, and transforms with their payloads.

Owns what the SDK's reads and writes between stages mean. Must not know plans.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.runners.worker import bundle_processor

from arcbeam.model.plan import TimeDomain, TimerFamily
from arcbeam.translate.parsing.parsedpipeline import ParsedTransform

DATA_INPUT: str = bundle_processor.DATA_INPUT_URN
DATA_OUTPUT: str = bundle_processor.DATA_OUTPUT_URN
IMPULSE_BUFFER = b"impulse"
SCRIPT = b"script:"
"""Begins the payload of the read that represents an output of a TestStream; its tag follows."""
PROCESS_URN: str = common_urns.sdf_components.PROCESS_SIZED_ELEMENTS_AND_RESTRICTIONS.urn
SPLIT_URN: str = common_urns.sdf_components.SPLIT_AND_SIZE_RESTRICTIONS.urn
_PROCESSING = (common_urns.primitives.PAR_DO.urn, PROCESS_URN)


class ParsedStage:
    """A stage.

    Args:
        stage: the SDK's stage, which no phase changes any more.

    Attributes:
        name: the SDK's name.
        transforms: all transforms, in the SDK's order.
        read: the read; None if it has none.
        writes: the writes.
        own: the transforms without reads and writes.
    """

    def __init__(self, stage: Any) -> None:
        self.name: str = stage.name
        self.transforms = [ParsedTransform(each) for each in stage.transforms]
        self.read = next((each for each in self.transforms if each.urn == DATA_INPUT), None)
        self.writes = [each for each in self.transforms if each.urn == DATA_OUTPUT]
        self.own = [each for each in self.transforms if each.urn not in (DATA_INPUT, DATA_OUTPUT)]

    @property
    def buffer(self) -> bytes:
        """The name of what it reads; empty if it has no read."""
        return b"" if self.read is None else self.read.proto.spec.payload

    @property
    def read_pcoll(self) -> str:
        """The PCollection that its read outputs."""
        assert self.read is not None
        pcoll: str = next(iter(self.read.proto.outputs.values()))
        return pcoll

    @property
    def script_tag(self) -> str | None:
        """The tag of the TestStream output that its read represents; None if it reads something else."""
        buffer = self.buffer
        return buffer.removeprefix(SCRIPT).decode() if buffer.startswith(SCRIPT) else None

    @property
    def is_root(self) -> bool:
        """Whether it reads nothing that another stage has written."""
        return self.read is None or self.buffer == IMPULSE_BUFFER or self.script_tag is not None

    @property
    def is_splittable(self) -> bool:
        """Whether it processes restrictions."""
        return any(each.urn == PROCESS_URN for each in self.transforms)

    @property
    def is_stable(self) -> bool:
        """Whether it requires stable input."""
        # All parts of a splittable DoFn have the flag; only the part that processes elements needs it.
        return any(each.par_do.requires_stable_input and each.urn in _PROCESSING for each in self.transforms)

    @property
    def consumers(self) -> list[ParsedTransform]:
        """The transforms that consume what it reads."""
        outputs = set() if self.read is None else set(self.read.proto.outputs.values())
        return [each for each in self.transforms if outputs & set(each.proto.inputs.values())]

    @property
    def states(self) -> tuple[tuple[str, str], ...]:
        """The states of its transforms; see `arcbeam.model.plan.Stage`."""
        return tuple((each.name, state) for each in self.transforms for state in sorted(each.par_do.state_specs))

    @property
    def timers(self) -> tuple[TimerFamily, ...]:
        """The timer families of its transforms."""
        found = []
        for transform in self.transforms:
            payload = transform.par_do
            for family, spec in sorted(payload.timer_family_specs.items()):
                event = spec.time_domain == runner_pb.TimeDomain.EVENT_TIME
                domain = TimeDomain.EVENT if event else TimeDomain.PROCESSING
                expiration = family == payload.on_window_expiration_timer_family_spec
                found.append(TimerFamily(transform.name, family, domain, expiration))
        return tuple(found)


def ordered(transforms: Iterable[ParsedTransform]) -> list[ParsedTransform]:
    """Sort producers before consumers; otherwise keep the order."""
    transforms = list(transforms)
    producer = {pcoll: each for each in transforms for pcoll in each.proto.outputs.values()}
    done: dict[str, ParsedTransform] = {}

    def visit(transform: ParsedTransform) -> None:
        if transform.name in done:
            return
        for pcoll in transform.proto.inputs.values():
            if pcoll in producer and producer[pcoll] is not transform:
                visit(producer[pcoll])
        done[transform.name] = transform

    for transform in transforms:
        visit(transform)
    return list(done.values())
