"""A pipeline's proto, parsed once: its transforms with their payloads, its environments, windowing strategies, coders.

Owns what a proto says about one transform, one collection, one environment. A function that changes a proto returns
another `ParsedPipeline`, so each is of one version. Must not know what is supported, nor how anything runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.runners.portability.fn_api_runner import translations
from google.protobuf.message import DecodeError

from arcbeam.errors import InvalidPipelineError
from arcbeam.model.plan import Field
from arcbeam.translate.parsing.parsedschemas import schema_of

PAR_DO_URNS: frozenset[str] = translations.PAR_DO_URNS
EXCHANGES: frozenset[str] = frozenset(
    [
        common_urns.composites.RESHUFFLE.urn,
        common_urns.composites.REDISTRIBUTE_ARBITRARILY.urn,
        common_urns.composites.REDISTRIBUTE_BY_KEY.urn,
    ]
)
KNOWN_URNS = EXCHANGES | {common_urns.primitives.FLATTEN.urn, common_urns.primitives.GROUP_BY_KEY.urn}
"""Transforms that the runner runs itself."""
LEAVES: frozenset[str] = translations.KNOWN_COMPOSITES | KNOWN_URNS
"""Transforms that are run as a whole, even if they have parts."""
_ENVIRONMENTS = common_urns.environments
_WITH_WORKERS = frozenset([_ENVIRONMENTS.EXTERNAL.urn, _ENVIRONMENTS.PROCESS.urn, _ENVIRONMENTS.DOCKER.urn])
_PYTHON = "beam:version:sdk_base:apache/beam_python"
_JAVA = "beam:version:sdk_base:apache/beam_java"


def leaf_stages(proto: Any) -> Iterator[Any]:
    """Yield the SDK's stages of a pipeline before any phase: one for each transform that is run."""
    yield from translations.leaf_transform_stages(proto.root_transform_ids, proto.components, known_composites=LEAVES)


class ParsedTransform:
    """A transform with its payload.

    Args:
        proto: `PTransform`; not changed.

    Attributes:
        proto: the same.
        name: its full name.
        urn: its URN.
        is_par_do: whether it is a ParDo or a part of a splittable one.
        par_do: the `ParDoPayload` of a ParDo, or of a part of a splittable one; empty if it is neither. Not changed.

    Raises:
        DecodeError: its payload is malformed.
    """

    __slots__ = ("is_par_do", "name", "par_do", "proto", "urn")

    def __init__(self, proto: Any) -> None:
        self.proto = proto
        self.name: str = proto.unique_name
        self.urn: str = proto.spec.urn
        self.is_par_do = self.urn in PAR_DO_URNS
        self.par_do = runner_pb.ParDoPayload.FromString(proto.spec.payload if self.is_par_do else b"")

    @property
    def has_state(self) -> bool:
        """Whether it has state or timers per key."""
        return bool(self.par_do.state_specs or self.par_do.timer_family_specs)

    @property
    def main_inputs(self) -> list[str]:
        """The PCollections that it reads, without its side inputs."""
        return [pcoll for tag, pcoll in self.proto.inputs.items() if tag not in self.par_do.side_inputs]

    def with_spec(self, urn: str, payload: bytes, name: str = "") -> ParsedTransform:
        """Return the transform with another URN and payload, and perhaps another name."""
        changed = runner_pb.PTransform()
        changed.CopyFrom(self.proto)
        changed.unique_name, changed.spec.urn, changed.spec.payload = name or self.name, urn, payload
        return ParsedTransform(changed)


class ParsedPipeline:
    """One version of a pipeline's proto.

    Args:
        proto: `beam_runner_api_pb2.Pipeline`; not changed.

    Attributes:
        proto: the same.
        components: its components.
    """

    def __init__(self, proto: Any) -> None:
        self.proto, self.components = proto, proto.components

    def changed(self) -> Any:
        """Return a copy of the proto, to be changed and parsed."""
        copy = runner_pb.Pipeline()
        copy.CopyFrom(self.proto)
        return copy

    @cached_property
    def transforms(self) -> Mapping[str, ParsedTransform]:
        """The transforms by id.

        Raises:
            InvalidPipelineError: a payload is malformed.
        """
        found = {}
        for id, proto in self.components.transforms.items():
            try:
                found[id] = ParsedTransform(proto)
            except DecodeError as e:
                raise InvalidPipelineError(f"the payload of transform '{id}' is malformed: {e}") from e
        return found

    @cached_property
    def leaves(self) -> Mapping[str, ParsedTransform]:
        """The transforms that are run, by id: leaves, and composites that are run as a whole."""
        return {stage.name: self.transforms[stage.name] for stage in leaf_stages(self.proto)}

    # Collections.

    def strategy(self, pcoll: str) -> Any:
        """Return the `WindowingStrategy` of a collection."""
        components = self.components
        return components.windowing_strategies[components.pcollections[pcoll].windowing_strategy_id]

    def coder(self, pcoll: str) -> Any:
        """Return the `Coder` of a collection's elements."""
        return self.components.coders[self.components.pcollections[pcoll].coder_id]

    def schema(self, pcoll: str) -> tuple[Field, ...] | None:
        """Return the schema of a collection; None if its elements are not rows."""
        return schema_of(self.coder(pcoll))

    @property
    def has_unbounded_input(self) -> bool:
        """Whether some input is unbounded.

        The output of a splittable DoFn is unbounded if its elements may be. So is each output of a TestStream.
        """
        return any(p.is_bounded == runner_pb.IsBounded.UNBOUNDED for p in self.components.pcollections.values())

    # Environments.

    def has_workers(self, environment: str) -> bool:
        """Return whether an environment has SDK workers; else its transforms run in the task's process."""
        # SUBTLE: indexing would add a missing environment to the pipeline, which would then not be refused.
        found = self.components.environments.get(environment)
        return found is not None and found.urn in _WITH_WORKERS

    def is_python(self, environment: str) -> bool:
        """Return whether the SDK of an environment is Python's."""
        return any(each.startswith(_PYTHON) for each in self.components.environments[environment].capabilities)

    def is_java(self, environment: str) -> bool:
        """Return whether the SDK of an environment is Java's."""
        return any(each.startswith(_JAVA) for each in self.components.environments[environment].capabilities)

    @cached_property
    def used_environments(self) -> frozenset[str]:
        """The environments of transforms without parts."""
        transforms = self.components.transforms.values()
        return frozenset(t.environment_id for t in transforms if t.environment_id and not t.subtransforms)

    @cached_property
    def any_workers(self) -> bool:
        """Whether some transform runs in an SDK worker."""
        return any(map(self.has_workers, self.used_environments))

    @cached_property
    def python_workers(self) -> str | None:
        """The environment of the SDK workers that run Python; None if there are none."""
        found = (each for each in self.used_environments if self.has_workers(each) and self.is_python(each))
        return min(found, default=None)

    @property
    def of_another_sdk(self) -> bool:
        """Whether all workers run another SDK than Python's. It encodes elements of a TestStream as in streams."""
        return self.any_workers and self.python_workers is None
