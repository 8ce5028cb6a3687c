"""Remove stages that only pass elements on: their producers write directly to their targets.

The SDK makes a stage of each Flatten whose inputs come from several stages. If only an exchange follows (a
CoGroupByKey, a stateful DoFn), each producer can write to that exchange itself. This saves moving all elements once.
Must not know what an exchange is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.runners.worker import bundle_processor

_BETWEEN_STAGES = b"materialize:"
"""Prefix of the SDK's names for buffers between stages that neither group nor redistribute."""
_INPUT, _OUTPUT = bundle_processor.DATA_INPUT_URN, bundle_processor.DATA_OUTPUT_URN


@dataclass(frozen=True, slots=True)
class _Detour:
    """A stage that only passes elements on.

    Attributes:
        stage: the SDK's stage.
        writes: the stage's writes.
        before: the stages that write to it, each with its writes.
    """

    stage: Any
    writes: Sequence[Any]
    before: Sequence[tuple[Any, Sequence[Any]]]


def without_detours(sides_of: Callable[[Any], Mapping[str, str]], stages: Iterable[Any], context: Any) -> list[Any]:
    """Remove such stages: a phase that runs after fusion. The other stages keep their order.

    Args:
        sides_of: returns the side input collections of a transform.
        stages: the SDK's stages.
        context: the context of the SDK's phases.
    """
    stages = list(stages)
    while (detour := _found(sides_of, stages, context.components)) is not None:
        for producer, writes in detour.before:
            for write in writes:
                producer.transforms.remove(write)
                producer.transforms += [_instead(write, further) for further in detour.writes]
        stages.remove(detour.stage)
        around = {producer for producer, _ in detour.before} | set(detour.stage.must_follow)
        for stage in stages:
            if detour.stage in stage.must_follow:
                others = [each for each in stage.must_follow if each is not detour.stage]
                stage.must_follow = tuple(dict.fromkeys((*others, *(each for each in stages if each in around))))
    return stages


def _found(sides_of: Callable[[Any], Mapping[str, str]], stages: Sequence[Any], components: Any) -> _Detour | None:
    """Return the first stage that only passes elements on; None if there is none."""
    sides = {p for stage in stages for t in stage.transforms for p in sides_of(t).values()}
    writers: dict[bytes, list[tuple[Any, list[Any]]]] = {}
    for stage in stages:
        own: dict[bytes, list[Any]] = {}
        for transform in stage.transforms:
            if transform.spec.urn == _OUTPUT:
                own.setdefault(transform.spec.payload, []).append(transform)
        for buffer, writes in own.items():
            writers.setdefault(buffer, []).append((stage, writes))
    for stage in stages:
        reads = [t for t in stage.transforms if t.spec.urn == _INPUT]
        writes = [t for t in stage.transforms if t.spec.urn == _OUTPUT]
        if len(reads) != 1 or not writes or len(stage.transforms) != 1 + len(writes):
            continue
        (read,) = reads
        (pcoll,) = read.outputs.values()
        before = writers.get(read.spec.payload, [])
        # An exchange that the user wrote must stay an exchange.
        passed = len(before) > 1 and read.spec.payload.startswith(_BETWEEN_STAGES)
        if passed and pcoll not in sides and all(_alike(components, pcoll, t) for _, of in before for t in of):
            return _Detour(stage, writes, before)
    return None


def _alike(components: Any, pcoll: str, write: Any) -> bool:
    """Return whether coder and windowing are the same on both sides: an exchange has one of each."""
    (written,) = (components.pcollections[each] for each in write.inputs.values())
    read, strategies = components.pcollections[pcoll], components.windowing_strategies
    same: bool = (
        written.coder_id == read.coder_id
        and strategies[written.windowing_strategy_id] == strategies[read.windowing_strategy_id]
    )
    return same


def _instead(write: Any, further: Any) -> Any:
    """Return a write of the same collection to the target of another write."""
    return runner_pb.PTransform(
        unique_name=f"{write.unique_name}/{further.unique_name}",
        inputs=write.inputs,
        spec=further.spec,
        environment_id=write.environment_id,
    )
