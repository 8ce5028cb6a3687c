"""Warnings about a streaming job before it runs: state that is never cleared, sinks that lose data.

Owns how such transforms are recognized, from the pipeline's proto alone, and the texts of the warnings.
"""

from __future__ import annotations

from typing import Any

from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb

from arcbeam.model.urns import FEW_KEYS_ANNOTATION
from arcbeam.translate import beamsinks, describe, phases, teststream

_GLOBAL = common_urns.global_windows.urn


def warnings_of(pipeline: Any) -> tuple[str, ...]:
    """Return the warnings for a pipeline that runs as a streaming job: one text for each affected transform.

    Args:
        pipeline: `beam_runner_api_pb2.Pipeline`, well-formed; not changed. A pipeline with a TestStream ends.
    """
    components = pipeline.components
    of_sinks = tuple(beamsinks.warnings_of(components))
    transforms = sorted(components.transforms.values(), key=lambda transform: str(transform.unique_name))
    if any(transform.spec.urn == teststream.URN for transform in transforms):
        return of_sinks
    return (*(text for transform in transforms if (text := _about(components, transform))), *of_sinks)


def _about(components: Any, transform: Any) -> str:
    """Return the warning for a transform; "" if there is none."""
    name = transform.unique_name
    if transform.spec.urn == common_urns.primitives.GROUP_BY_KEY.urn:
        (source,) = transform.inputs.values()
        strategy = _endless(components, source)
        if strategy is not None and not describe.may_fire_early(strategy.trigger, streaming=True):
            return (
                f"'{name}' produces no output before its input ends, and keeps all input until then. Its input is "
                f"unbounded and in the global window, and its trigger waits for the end of that window. Window the "
                f"input, or set a trigger that fires earlier (arcbeam.io.OutputMode has the usual ones)"
            )
        return ""
    payload = phases.par_do_payload(transform)
    if payload is None or not payload.state_specs:
        return ""
    if set(payload.timer_family_specs) - {payload.on_window_expiration_timer_family_spec}:
        return ""
    if FEW_KEYS_ANNOTATION in transform.annotations:
        return ""
    (source,) = (pcoll for tag, pcoll in transform.inputs.items() if tag not in payload.side_inputs)
    if _endless(components, source) is None:
        return ""
    states = ", ".join(f"'{state}'" for state in sorted(payload.state_specs))
    return (
        f"'{name}' keeps state ({states}) for each key until its process method clears it. Its input is unbounded "
        f"and in the global window, and it has no timer. Window the input, so that state is removed when a window "
        f"expires, or clear the state in a timer"
    )


def _endless(components: Any, pcoll: str) -> Any:
    """Return the windowing strategy of a collection that is unbounded and in the global window; else None."""
    proto = components.pcollections[pcoll]
    strategy = components.windowing_strategies[proto.windowing_strategy_id]
    unbounded = proto.is_bounded == runner_pb.IsBounded.UNBOUNDED
    return strategy if unbounded and strategy.window_fn.urn == _GLOBAL else None
