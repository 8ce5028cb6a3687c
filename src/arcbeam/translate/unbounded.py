"""What people should know of a streaming job before it runs: state that nothing ever lets go, sinks that lose data.

Owns by what it is recognized, from the pipeline's proto alone, and what is said about it.
"""

from __future__ import annotations

from typing import Any

from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb

from arcbeam.translate import beamsinks, describe, phases, teststream

_GLOBAL = common_urns.global_windows.urn


def warnings_of(pipeline: Any) -> tuple[str, ...]:
    """What is said about a pipeline that streaming runs: one text for each transform of it that is concerned.

    Args:
        pipeline: `beam_runner_api_pb2.Pipeline`, well-formed; not changed. One with a TestStream has an end.
    """
    components = pipeline.components
    of_sinks = tuple(beamsinks.warnings_of(components))
    transforms = sorted(components.transforms.values(), key=lambda transform: str(transform.unique_name))
    if any(transform.spec.urn == teststream.URN for transform in transforms):
        return of_sinks
    return (*(text for transform in transforms if (text := _about(components, transform))), *of_sinks)


def _about(components: Any, transform: Any) -> str:
    """What is said about a transform; "" if there is nothing."""
    name = transform.unique_name
    if transform.spec.urn == common_urns.primitives.GROUP_BY_KEY.urn:
        (source,) = transform.inputs.values()
        strategy = _endless(components, source)
        if strategy is not None and not describe.may_fire_early(strategy.trigger, streaming=True):
            return (
                f"{name} puts out nothing before its input ends, and holds all of it until then: the input is "
                f"unbounded and in the global window, whose end its trigger waits for; put the input into windows, or "
                f"give it a trigger that fires before (arcbeam.io.OutputMode has the usual ones)"
            )
        return ""
    payload = phases.par_do_payload(transform)
    if payload is None or not payload.state_specs or payload.timer_family_specs:
        return ""
    (source,) = (pcoll for tag, pcoll in transform.inputs.items() if tag not in payload.side_inputs)
    if _endless(components, source) is None:
        return ""
    states = ", ".join(f"'{state}'" for state in sorted(payload.state_specs))
    return (
        f"{name} keeps state ({states}) of each key for ever, but for what its process method clears: its input is "
        f"unbounded and in the global window, and it has no timer; put the input into windows, at whose end state "
        f"goes, or clear it by a timer"
    )


def _endless(components: Any, pcoll: str) -> Any:
    """The windowing strategy of a collection that has no end, in a window that has none; None of any other."""
    proto = components.pcollections[pcoll]
    strategy = components.windowing_strategies[proto.windowing_strategy_id]
    unbounded = proto.is_bounded == runner_pb.IsBounded.UNBOUNDED
    return strategy if unbounded and strategy.window_fn.urn == _GLOBAL else None
