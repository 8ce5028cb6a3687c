"""By what a stage is known to those who go on with its state: a name, and the shape of its rows.

Owns both. Which transforms share a stage may change from run to run, and with it the stage's name for people; what is
here is of the one transform whose state it keeps. Must not know what the state is kept in.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb

from arcbeam.model.urns import STATE_ANNOTATION
from arcbeam.translate import describe, phases


def uid(components: Any, read: Any, transforms: list[Any]) -> str:
    """The full name of the transform that a stage is known by.

    Args:
        components: of the pipeline.
        read: of the stage; None if it has none.
        transforms: of the stage, producers before consumers, without reads and writes.
    """
    if read is not None and read.spec.payload.startswith(b"group:"):
        # A buffer is named by the grouping's id, which has a number that counts transforms.
        grouping: str = components.transforms[read.spec.payload.decode().partition(":")[2]].unique_name
        return grouping
    if read is not None and phases.script_tag(read) is not None:
        script: str = read.unique_name
        return script
    stateful = next(filter(_has_state, transforms), None)
    first = transforms[0] if transforms else read
    name: str = (stateful or first).unique_name
    return name


def unique(uids: Iterable[str]) -> list[str]:
    """The names, each once: one that was there before gets a number."""
    seen: dict[str, int] = {}
    names = []
    for name in uids:
        seen[name] = seen.get(name, 0) + 1
        names.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return names


def shape(components: Any, transforms: list[Any], coder_id: str, strategy: Any, *, grouped: bool) -> str:
    """What the rows of a stage with keys are made of: coders, windows, states, timers, and what else states depend on.

    Args:
        components: of the pipeline.
        transforms: of the stage.
        coder_id: of what it reads.
        strategy: the windowing strategy of that.
        grouped: it keeps panes: who keeps other state does not follow triggers, so those may change.
    """
    windows = describe.windowing(strategy) if grouped else describe.windows(strategy)
    parts = [describe.coder(components, coder_id), windows]
    for transform in transforms:
        payload = phases.par_do_payload(transform)
        if payload is None:
            continue
        for name, spec in sorted(payload.state_specs.items()):
            parts.append(f"state {name}: {_state(components, spec)}")
        for name, spec in sorted(payload.timer_family_specs.items()):
            domain = runner_pb.TimeDomain.Enum.Name(spec.time_domain).lower()
            parts.append(f"timer {name}: {domain}")
        if STATE_ANNOTATION in transform.annotations:
            parts.append(transform.annotations[STATE_ANNOTATION].decode())
    return "; ".join(parts)


def _has_state(transform: Any) -> bool:
    payload = phases.par_do_payload(transform)
    return payload is not None and bool(payload.state_specs or payload.timer_family_specs)


def _state(components: Any, spec: Any) -> str:
    kind = spec.WhichOneof("spec")
    of = getattr(spec, kind)
    ids = [getattr(of, field.name) for field in of.DESCRIPTOR.fields if field.name.endswith("coder_id")]
    return f"{kind.removesuffix('_spec')}<{', '.join(describe.coder(components, id) for id in ids)}>"
