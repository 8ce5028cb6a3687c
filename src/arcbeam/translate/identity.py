"""The identity of a stage for a job that resumes: a stable name, and the shape of its rows.

Which transforms share a stage may change from run to run, and with it the stage's display name. The identity depends
only on the transform whose state the stage keeps. Must not know how state is stored.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb

from arcbeam.model.plan import BY_SDK_WORKERS
from arcbeam.model.urns import STATE_ANNOTATION
from arcbeam.translate import describe
from arcbeam.translate.parsing.parsedpipeline import ParsedTransform
from arcbeam.translate.parsing.parsedstages import ParsedStage


def uid(components: Any, stage: ParsedStage, transforms: list[ParsedTransform]) -> str:
    """Return the full name of the transform that identifies a stage.

    Args:
        components: the pipeline's components.
        stage: the stage.
        transforms: its transforms, producers before consumers, without reads and writes.
    """
    if stage.buffer.startswith(b"group:"):
        # A buffer is named after the grouping's id, which contains a number that counts transforms.
        grouping: str = components.transforms[stage.buffer.decode().partition(":")[2]].unique_name
        return grouping
    transforms = [] if stage.script_tag is not None else transforms
    named = next((each for each in transforms if each.has_state), transforms[0] if transforms else stage.read)
    assert named is not None
    return named.name


def unique(uids: Iterable[str]) -> list[str]:
    """Return the names made unique: a repeated name gets a number."""
    seen: dict[str, int] = {}
    names = []
    for name in uids:
        seen[name] = seen.get(name, 0) + 1
        names.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return names


def shape(
    components: Any, transforms: list[ParsedTransform], coder_id: str, strategy: Any, *, grouped: bool, by_workers: bool
) -> str:
    """Describe the rows of a keyed stage: coders, windows, states, timers, and what else its state depends on.

    Args:
        components: the pipeline's components.
        transforms: the stage's transforms.
        coder_id: the coder of the stage's input.
        strategy: the windowing strategy of the stage's input.
        grouped: whether the stage keeps panes. Only panes depend on the trigger; in other stages the trigger may
            change.
        by_workers: whether the rows have bytes that only SDK workers write.
    """
    windows = describe.windowing(strategy) if grouped else describe.windows(strategy)
    parts = [describe.coder(components, coder_id) + BY_SDK_WORKERS * by_workers, windows]
    for transform in transforms:
        payload = transform.par_do
        for name, spec in sorted(payload.state_specs.items()):
            parts.append(f"state {name}: {_state(components, spec)}")
        for name, spec in sorted(payload.timer_family_specs.items()):
            domain = runner_pb.TimeDomain.Enum.Name(spec.time_domain).lower()
            expiration = name == payload.on_window_expiration_timer_family_spec
            parts.append(f"timer {name}: {'window expiration' if expiration else domain}")
        if STATE_ANNOTATION in transform.proto.annotations and transform.is_par_do:
            parts.append(transform.proto.annotations[STATE_ANNOTATION].decode())
    return "; ".join(parts)


def _state(components: Any, spec: Any) -> str:
    kind = spec.WhichOneof("spec")
    of = getattr(spec, kind)
    ids = [getattr(of, field.name) for field in of.DESCRIPTOR.fields if field.name.endswith("coder_id")]
    return f"{kind.removesuffix('_spec')}<{', '.join(describe.coder(components, id) for id in ids)}>"
