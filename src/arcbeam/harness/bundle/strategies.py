"""Reads a windowing strategy's proto: the SDK's object for it omits half of its content.

Owns the translation of triggers, merging, behaviors and delays to the engine's types. Must not know the code that
groups.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.transforms.window import Sessions, WindowFn
from typing_extensions import override

from arcbeam.engine.grouping import composites, triggers
from arcbeam.engine.grouping.delays import AlignTo, Delay, Transform
from arcbeam.engine.grouping.merging import CustomMerging, Merge, Merging, MergingFn, SessionMerging
from arcbeam.engine.grouping.strategy import PaneTime, Strategy
from arcbeam.harness.bundle.processor import StageProcessor
from arcbeam.harness.bundle.windows import Windows
from arcbeam.model.timestamps import Duration
from arcbeam.model.windows import Window

_PANE_TIMES = {
    runner_pb.OutputTime.EARLIEST_IN_PANE: PaneTime.EARLIEST,
    runner_pb.OutputTime.LATEST_IN_PANE: PaneTime.LATEST,
}


def windowing_proto(processor: StageProcessor) -> Any:
    """Return the windowing strategy of the stage's input."""
    components = runner_pb.Components.FromString(processor.stage.payload)
    root = components.transforms[processor.root.transform_id]
    pcoll = components.pcollections[next(iter(root.outputs.values()))]
    return components.windowing_strategies[pcoll.windowing_strategy_id]


def strategy_of(
    proto: Any,
    windowfn: Any,
    windows: Windows,
    synchronized: Callable[[], triggers.Trigger] = triggers.AfterSynchronizedTime,
) -> Strategy:
    """Return the engine's strategy for a `WindowingStrategy`.

    Args:
        proto: the strategy.
        windowfn: the strategy's window function.
        windows: its windows.
        synchronized: see `trigger_of`.
    """
    empty_on_time, empty_last = empty_panes(proto)
    return Strategy(
        trigger=trigger_of(proto.trigger, synchronized),
        merging=_merging(windowfn, windows),
        accumulating=proto.accumulation_mode == runner_pb.AccumulationMode.ACCUMULATING,
        pane_time=_PANE_TIMES.get(proto.output_time, PaneTime.END_OF_WINDOW),
        lateness=Duration(proto.allowed_lateness * 1000),
        empty_on_time=empty_on_time,
        empty_last=empty_last,
    )


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


def _merging(windowfn: Any, windows: Windows) -> Merging | None:
    if not windowfn.is_merging():
        return None
    # SUBTLE: not for subclasses, which may merge differently.
    if type(windowfn) is Sessions and windows.intervals:
        return SessionMerging()
    return CustomMerging(_UserMerging(windowfn, windows), windows.intervals)


class _UserMerging(MergingFn):
    """A user-defined merging window function. See `arcbeam.engine.grouping.merging.MergingFn`."""

    def __init__(self, windowfn: Any, windows: Windows) -> None:
        self._windowfn = windowfn
        self._windows = windows

    @override
    def merge(self, windows: Collection[Window]) -> Iterable[Merge]:
        merges: list[Merge] = []
        ours = self._windows.ours

        class Context(WindowFn.MergeContext):  # type: ignore[misc]  # Beam is untyped
            def merge(self, to_be_merged: Iterable[Any], merge_result: Any) -> None:
                merges.append(Merge(tuple(map(ours, to_be_merged)), ours(merge_result)))

        self._windowfn.merge(Context([self._windows.theirs(window) for window in windows]))
        return merges
