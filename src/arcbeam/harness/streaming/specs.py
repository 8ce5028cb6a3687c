"""What the engine must know of a stage, read from the stage's SDK objects.

Owns the translation of a stage's root to the engine's kind of stage. Must not know where the stage is placed.
"""

from __future__ import annotations

from collections.abc import Callable

from arcbeam.engine.protocol.stagekinds import Grouped, Plain, Splittable, StageKind, Stateful
from arcbeam.harness.bundle.processor import StageProcessor
from arcbeam.harness.bundle.strategies import strategy_of, windowing_proto
from arcbeam.harness.bundle.windows import Windows
from arcbeam.model.plan import Stage
from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, Duration, Timestamp, shifted
from arcbeam.model.windows import Window


def kind_of(processor: StageProcessor, windows: Windows) -> StageKind:
    """Return the engine's kind of a stage.

    Args:
        processor: the stage's processor.
        windows: the windows of its input.
    """
    stage, how = processor.stage, processor.root.how
    if stage.splittable:
        return Splittable()
    match how.mode:
        case "keyed":
            families = family_names(stage)
            return Stateful(
                {families[t.transform, t.family]: t.domain for t in stage.timers if not t.expiration},
                windows.decode,
                _expiry(processor, in_order=how.time_sorted),
                _lateness(processor) if how.time_sorted else None,
                at_expiration=any(timer.expiration for timer in stage.timers),
                cells=bool(stage.states),
            )
        case "triggered" | "groups":
            strategy = strategy_of(windowing_proto(processor), processor.root.windowing.windowfn, windows)
            return Grouped(strategy, windows.decode)
        case _:
            return Plain()


def family_names(stage: Stage) -> dict[tuple[str, str], str]:
    """Return the engine's name of each state and timer family of a stage, by transform and the SDK's name.

    It is the SDK's name, unless several transforms of the stage have states or timers. Names of transforms may change
    when a job is restored, and rows of the state must survive that.
    """
    all_of = [*stage.states, *((timer.transform, timer.family) for timer in stage.timers)]
    alone = len({transform for transform, _ in all_of}) == 1
    return {(transform, name): name if alone else f"{name}@{transform}" for transform, name in all_of}


def _lateness(processor: StageProcessor) -> Duration:
    return Duration(windowing_proto(processor).allowed_lateness * 1000)


def _expiry(processor: StageProcessor, in_order: bool) -> Callable[[Window], Timestamp]:
    """Return when a window's state expires. Time-sorted input waits for the lateness, so it is not added again."""
    lateness = Duration(0) if in_order else _lateness(processor)
    return lambda window: min(shifted(window.max_timestamp, lateness), END_OF_GLOBAL_WINDOW)
