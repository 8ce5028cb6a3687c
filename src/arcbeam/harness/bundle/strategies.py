"""Reads a windowing strategy's proto: the SDK's object for it omits half of its content.

Owns the translation of triggers, behaviors and delays to the engine's types. Must not know the code that groups.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb

from arcbeam.engine.grouping import composites, triggers
from arcbeam.engine.grouping.delays import AlignTo, Delay, Transform
from arcbeam.harness.bundle.processor import StageProcessor
from arcbeam.model.timestamps import Duration


def windowing_proto(processor: StageProcessor) -> Any:
    """Return the windowing strategy of the stage's input."""
    components = runner_pb.Components.FromString(processor.stage.payload)
    root = components.transforms[processor.root.transform_id]
    pcoll = components.pcollections[next(iter(root.outputs.values()))]
    return components.windowing_strategies[pcoll.windowing_strategy_id]


def empty_panes(proto: Any) -> tuple[bool, bool]:
    """Return whether an empty pane is emitted at the end of a window, and whether at its closing."""
    on_time, closing = runner_pb.OnTimeBehavior, runner_pb.ClosingBehavior
    # SUBTLE: the Python SDK writes "always" for both, whatever the user wants, and itself emits no empty last panes.
    # So only other pairs are the user's choice.
    unchosen = proto.on_time_behavior == on_time.FIRE_ALWAYS and proto.closing_behavior == closing.EMIT_ALWAYS
    return (
        proto.on_time_behavior != on_time.FIRE_IF_NONEMPTY,
        proto.closing_behavior == closing.EMIT_ALWAYS and not unchosen,
    )


def trigger_of(
    proto: Any, synchronized: Callable[[], triggers.Trigger] = triggers.AfterSynchronizedTime
) -> triggers.Trigger:
    """Return the state machine of a `Trigger` proto.

    Args:
        proto: the trigger.
        synchronized: creates a trigger that waits until all upstream shards have reached a processing time.

    Raises:
        ValueError: the kind of trigger is unknown.
    """

    def of(proto: Any) -> triggers.Trigger:
        return trigger_of(proto, synchronized)

    kind = proto.WhichOneof("trigger")
    spec: Any = getattr(proto, kind) if kind else None
    match kind:
        case None | "default":
            return composites.Repeatedly(composites.AfterWatermark())
        case "after_end_of_window":
            return composites.AfterWatermark(
                of(spec.early_firings) if spec.HasField("early_firings") else None,
                of(spec.late_firings) if spec.HasField("late_firings") else None,
            )
        case "element_count":
            return triggers.AfterCount(max(1, spec.element_count))
        case "after_processing_time":
            return triggers.AfterTime(*map(_transform, spec.timestamp_transforms))
        case "after_synchronized_processing_time":
            return synchronized()
        case "never":
            return triggers.Never()
        case "always":
            return triggers.Always()
        case "repeat":
            return composites.Repeatedly(of(spec.subtrigger))
        case "or_finally":
            return composites.OrFinally(of(spec.main), of(getattr(spec, "finally")))
        case "after_any":
            return composites.AfterAny(*map(of, spec.subtriggers))
        case "after_all":
            return composites.AfterAll(*map(of, spec.subtriggers))
        case "after_each":
            return composites.AfterEach(*map(of, spec.subtriggers))
    raise ValueError(f"unknown kind of trigger: {kind}")


def _transform(proto: Any) -> Transform:
    if proto.HasField("align_to"):
        return AlignTo(Duration(proto.align_to.period * 1000), Duration(proto.align_to.offset * 1000))
    return Delay(Duration(proto.delay.delay_millis * 1000))
