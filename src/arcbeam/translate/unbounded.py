"""Warnings about a streaming job before it runs: state that is never cleared, sinks that lose data.

Owns how such transforms are recognized, from the pipeline's proto alone, and the texts of the warnings.
"""

from __future__ import annotations

from typing import Any

from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb

from arcbeam.model.urns import FEW_KEYS_ANNOTATION
from arcbeam.translate import beamsinks, describe, teststream
from arcbeam.translate.parsing.parsedpipeline import ParsedPipeline, ParsedTransform

_GLOBAL = common_urns.global_windows.urn


def warnings_of(pipeline: ParsedPipeline) -> tuple[str, ...]:
    """Return the warnings for a pipeline that runs as a streaming job: one text for each affected transform.

    Args:
        pipeline: the pipeline, well-formed. A pipeline with a TestStream ends.
    """
    of_sinks = tuple(beamsinks.warnings_of(pipeline))
    if teststream.of(pipeline) is not None:
        return of_sinks
    transforms = sorted(pipeline.transforms.values(), key=lambda transform: transform.name)
    return (*(text for transform in transforms if (text := _about(pipeline, transform))), *of_sinks)


def _about(pipeline: ParsedPipeline, transform: ParsedTransform) -> str:
    """Return the warning for a transform; "" if there is none."""
    name, payload = transform.name, transform.par_do
    if transform.urn == common_urns.primitives.GROUP_BY_KEY.urn:
        (source,) = transform.main_inputs
        strategy = _endless(pipeline, source)
        if strategy is not None and not describe.may_fire_early(strategy.trigger, streaming=True):
            return (
                f"'{name}' produces no output before its input ends, and keeps all input until then. Its input is "
                f"unbounded and in the global window, and its trigger waits for the end of that window. Window the "
                f"input, or set a trigger that fires earlier (arcbeam.io.OutputMode has the usual ones)"
            )
        return ""
    if not payload.state_specs or set(payload.timer_family_specs) - {payload.on_window_expiration_timer_family_spec}:
        return ""
    if FEW_KEYS_ANNOTATION in transform.proto.annotations:
        return ""
    (source,) = transform.main_inputs
    if _endless(pipeline, source) is None:
        return ""
    states = ", ".join(f"'{state}'" for state in sorted(payload.state_specs))
    return (
        f"'{name}' keeps state ({states}) for each key until its process method clears it. Its input is unbounded "
        f"and in the global window, and it has no timer. Window the input, so that state is removed when a window "
        f"expires, or clear the state in a timer"
    )


def _endless(pipeline: ParsedPipeline, pcoll: str) -> Any:
    """Return the windowing strategy of a collection that is unbounded and in the global window; else None."""
    strategy = pipeline.strategy(pcoll)
    unbounded = pipeline.components.pcollections[pcoll].is_bounded == runner_pb.IsBounded.UNBOUNDED
    return strategy if unbounded and strategy.window_fn.urn == _GLOBAL else None
