"""Plausible mistakes in the engine and the store, and a search for seeds that find them.

    python -m simulator.mutations [--seeds A..B] [NAME ...]

Owns the mistakes, as patches of the real code, and the search. A check that finds no mistake is useless: run this after
changes of the simulator, to see that it still finds them. Must not know how a mistake is found.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from arcbeam.engine.coordinator import Event, JobMachine, JobStarted, Mode, committing, idling, machine
from arcbeam.engine.coordinator.state import MachineState
from arcbeam.engine.grouping.openwindow import Clocks, OpenWindow
from arcbeam.engine.grouping.sortedruns import SortedRuns
from arcbeam.engine.grouping.windowbuffer import WindowBuffer
from arcbeam.engine.protocol import markers
from arcbeam.engine.protocol.layout import Layout
from arcbeam.engine.rows.frontier import Frontier
from arcbeam.engine.state.residuals import Remainder, Residuals, Restriction
from arcbeam.engine.task import shard, stagerun
from arcbeam.engine.task.bundles import BundleResult
from arcbeam.engine.task.plainstage import SplittableLogic
from arcbeam.engine.task.stagecontext import StageContext
from arcbeam.engine.task.stagerun import StageRun
from arcbeam.engine.watermarks import idleness
from arcbeam.engine.watermarks import stages as watermarks
from arcbeam.engine.watermarks.clocks import Clock, Local
from arcbeam.engine.watermarks.holds import Holder, HolderKind, Holds
from arcbeam.engine.watermarks.observed import together
from arcbeam.engine.watermarks.outlierfilter import OutlierDecision, without_outliers
from arcbeam.engine.watermarks.sketches import with_more
from arcbeam.engine.watermarks.stages import WatermarkTimes
from arcbeam.model.observers import Policy
from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, MAX_TIMESTAMP, MIN_TIMESTAMP, Duration, Timestamp
from arcbeam.model.windows import Window
from arcbeam.store.manifest.values import Manifest
from arcbeam.streaming import driverstate
from arcbeam.streaming.driver.driver import JobDriver
from simulator.__main__ import seeds_of
from simulator.mistakes_of_batches import OF_BATCHES
from simulator.mistakes_of_loops import OF_LOOPS
from simulator.mistakes_of_rescaling import OF_RESCALING
from simulator.mistakes_of_the_driver import OF_THE_DRIVER
from simulator.mistakes_of_the_store import OF_THE_STORE, Mutation
from simulator.mistakes_of_timers import OF_TIMERS_AND_SIDES
from simulator.playing import driver
from simulator.playing.buffered import Committing
from simulator.playing.usercode import Passing
from simulator.playing.world import play
from simulator.scenario.choosing import scenario_of
from simulator.shrinking import Failure, played, shrunk


def _hold_dropped_at_a_split() -> AbstractContextManager[object]:
    split = Residuals.split

    def without_hold(self: Residuals, id: bytes, residual: Remainder, now: Timestamp) -> Restriction:
        made = split(self, id, residual, now)
        for output in self._outputs:
            self._holds.clear(Holder(HolderKind.RESIDUAL, f"{made.root}~{made.id.hex()}"), output)
        return made

    return patch.object(Residuals, "split", without_hold)


def _marker_ignored() -> AbstractContextManager[object]:
    gathered = watermarks.upstream_watermarks

    def of_the_first(markers: Sequence[Any], tasks: Mapping[Any, int], committed_outputs: Any) -> Any:
        return gathered(markers[:1], dict.fromkeys(tasks, 1), committed_outputs)

    return patch.object(markers, "upstream_watermarks", of_the_first)


def _residual_kept_twice() -> AbstractContextManager[object]:
    hand_over = Residuals.hand_over

    def and_keep(self: Residuals, id: bytes) -> bytes:
        handed = hand_over(self, id)
        self.adopt(handed)
        return handed

    return patch.object(Residuals, "hand_over", and_keep)


def _watermark_as_max() -> AbstractContextManager[object]:
    return patch.object(watermarks, "min", max, create=True)


def _drop_uncounted() -> AbstractContextManager[object]:
    def uncounted(self: StageContext, drop: Any) -> None:
        self.exchange.late(self.placed.name, self.shard, drop)

    return patch.object(StageContext, "drop", uncounted)


def _pending_ignored() -> AbstractContextManager[object]:
    advance = Clock.advance

    def whatever_waits(self: Clock, upstream: Timestamp) -> Timestamp:
        with patch.object(Holds, "earliest", lambda self, output=None: None):
            return advance(self, upstream)

    return patch.object(Clock, "advance", whatever_waits)


def _pending_forgotten() -> AbstractContextManager[object]:
    """The input watermark is not stored, although what is pending is earlier than it."""
    advance = Clock.advance

    def unstored(self: Clock, upstream: Timestamp) -> Timestamp:
        advance(self, upstream)
        self._view.delete(self._row)
        return self.input

    return patch.object(Clock, "advance", unstored)


def _idle_at_the_beginning() -> AbstractContextManager[object]:
    """A shard without a row is treated as if no watermark had ever reached it."""
    return patch.object(WatermarkTimes, "upstream_at", lambda self, stage: MIN_TIMESTAMP)


def _numbered_on() -> AbstractContextManager[object]:
    grow = OpenWindow.grow

    def and_goes_on(self: OpenWindow[Any], window: Window, clocks: Clocks) -> None:
        index, nonspeculative = self.record.index, self.record.nonspeculative
        grow(self, window, clocks)
        self.record.index, self.record.nonspeculative = index, nonspeculative

    return patch.object(OpenWindow, "grow", and_goes_on)


def _drain_over() -> AbstractContextManager[object]:
    deliver = SplittableLogic.deliver

    def untruncated(self: SplittableLogic, key: bytes, elements: Sequence[Any]) -> None:
        self._drain = False
        deliver(self, key, elements)

    return patch.object(SplittableLogic, "deliver", untruncated)


def _merged_hold_lost() -> AbstractContextManager[object]:
    absorb = OpenWindow.absorb

    def without_hold(self: OpenWindow[Any], other: OpenWindow[Any], clocks: Clocks) -> None:
        other.record.hold = None
        absorb(self, other, clocks)

    return patch.object(OpenWindow, "absorb", without_hold)


@contextmanager
def _state_committed_late() -> Iterator[None]:
    """User code writes its state at the end of its bundles, and the runner does not report that."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(Committing, "returns", lambda self: None))
        stack.enter_context(patch.object(StageRun, "_finish", _finished_unseen))
        yield


def _finished_unseen(self: StageRun) -> BundleResult:
    closed = self._place.runner.finish()
    self._place.record(closed.call)
    return closed


def _read_once() -> AbstractContextManager[object]:
    read = Frontier._read

    def and_never_again(self: Frontier) -> None:
        read(self)
        self._until = self._end

    return patch.object(Frontier, "_read", and_never_again)


def _savepoint_forgotten() -> AbstractContextManager[object]:
    committed = committing.committed

    def and_nothing_waits(state: MachineState, proposal: Any) -> None:
        committed(state, proposal)
        state.savepoints.clear()

    return patch.object(committing, "committed", and_nothing_waits)


def _suspension_unheard() -> AbstractContextManager[object]:
    request = JobMachine._request

    def unheard(self: JobMachine, mode: Mode, savepoint: str) -> None:
        if mode is not Mode.SUSPENDING:
            request(self, mode, savepoint)

    return patch.object(JobMachine, "_request", unheard)


def _only_the_micro_batches() -> AbstractContextManager[object]:
    return patch.object(watermarks, "later", lambda seen, more: dict(more))


def _doubts_forgotten() -> AbstractContextManager[object]:
    def without_doubts(latest: int | None, times: Iterable[int], jump: int, others: int) -> OutlierDecision:
        return OutlierDecision(without_outliers(latest, times, jump, others).latest, ())

    return patch.object(watermarks, "without_outliers", without_doubts)


def _ahead_accepted() -> AbstractContextManager[object]:
    return patch.object(Passing, "_near", lambda self, times, skew: times)


def _silent_for_ever() -> AbstractContextManager[object]:
    active = watermarks._active

    def though_quiet(upstream: Timestamp, locals: Sequence[Local], output: str) -> Timestamp:
        speaking = [replace(of, outputs={output: replace(of.outputs[output], quiet=False)}) for of in locals]
        return active(upstream, speaking, output)

    return patch.object(watermarks, "_active", though_quiet)


def _silent_at_once() -> AbstractContextManager[object]:
    return patch.object(idleness, "_since", lambda view, row, reported, now: Timestamp(0))


def _idle_one_counts() -> AbstractContextManager[object]:
    def of_all(policy: Policy, reported: Iterable[tuple[Timestamp, bool]]) -> Timestamp | None:
        return together(policy, ((time, False) for time, _ in reported))

    return patch.object(watermarks, "together", of_all)


def _end_of_one_counts() -> AbstractContextManager[object]:
    def with_its_end(policy: Policy, reported: Iterable[tuple[Timestamp, bool]]) -> Timestamp | None:
        return together(policy, ((min(time, END_OF_GLOBAL_WINDOW), idle) for time, idle in reported))

    return patch.object(watermarks, "together", with_its_end)


def _quantile_of_a_micro_batch() -> AbstractContextManager[object]:
    return patch.object(watermarks, "with_more", lambda recent, more: with_more(None, more))


def _observed_reports_own() -> AbstractContextManager[object]:
    return patch.object(shard, "marker_time", lambda paths, reported: reported)


def _late_panes_at_the_expiry() -> AbstractContextManager[object]:
    rearm = OpenWindow._rearm

    def for_the_end(self: OpenWindow[Any], clocks: Clocks, ticked: bool = False) -> None:
        rearm(self, clocks, ticked)
        if self.record.passed:
            self.record.until_ready, self.record.next_timer = 1 << 30, None

    return patch.object(OpenWindow, "_rearm", for_the_end)


def _run_over_run() -> AbstractContextManager[object]:
    add = SortedRuns.add

    def over_the_first(self: SortedRuns, groups: Any) -> None:
        with patch.object(SortedRuns, "_directory", lambda self: {}):
            add(self, groups)

    return patch.object(SortedRuns, "add", over_the_first)


def _rest_of_a_window_lost() -> AbstractContextManager[object]:
    store = WindowBuffer.store

    def or_forget(self: WindowBuffer, window: Window) -> None:
        if self.is_stored(window):
            self._arrived.pop(window)
        else:
            store(self, window)

    return patch.object(WindowBuffer, "store", or_forget)


def _late_ahead() -> AbstractContextManager[object]:
    return patch.object(WindowBuffer, "_waits", lambda self, window: False)


def _end_reported_too_early() -> AbstractContextManager[object]:
    return patch.object(stagerun, "_with_hold", lambda local, hold: local)


def _rests_with_work() -> AbstractContextManager[object]:
    return patch.object(idling, "has_work", lambda *_: False)


def _one_more_rests() -> AbstractContextManager[object]:
    rests = idling.idle_levels
    return patch.object(
        machine,
        "idle_levels",
        lambda layout, *rest: min(rests(layout, *rest) + 1, len(layout.tasks) - 1),
    )


def _begins_again() -> AbstractContextManager[object]:
    """A driver that finds a source that has not begun restarts all sources."""

    def all_of_them(head: Manifest, layout: Layout, now: Timestamp) -> JobStarted:
        event = driverstate.started(head, layout, now)
        return replace(event, unbegun=layout.sources) if event.unbegun else event

    return patch.object(driver, "started", all_of_them)


def _never_begins() -> AbstractContextManager[object]:
    """A source that joins after the start of the job is treated as begun."""

    def with_the_job(head: Manifest, layout: Layout, now: Timestamp) -> JobStarted:
        event = driverstate.started(head, layout, now)
        return event if event.unbegun == layout.sources else replace(event, unbegun=frozenset())

    return patch.object(driver, "started", with_the_job)


def _watermark_lowered() -> AbstractContextManager[object]:
    """The watermark of a stage falls to that of a source that has joined."""

    def of_producers(self: WatermarkTimes, stage: str, producers: Iterable[Timestamp]) -> Timestamp:
        return min(producers, default=MAX_TIMESTAMP)

    return patch.object(WatermarkTimes, "upstream_of", of_producers)


def _takeover_checked_when_it_fails() -> AbstractContextManager[object]:
    init = JobDriver.__init__

    def seldom(self: JobDriver, *of: Any, **more: Any) -> None:
        init(self, *of, **more, takeover_checks=Duration(1 << 50))

    return patch.object(JobDriver, "__init__", seldom)


def _takeover_checked_when_idle() -> AbstractContextManager[object]:
    handle = JobDriver.handle

    def unless_it_failed(self: JobDriver, event: Event) -> None:
        with patch("arcbeam.streaming.driver.driver._FAILED_TRIES", ()):
            handle(self, event)

    return patch.object(JobDriver, "handle", unless_it_failed)


MUTATIONS: Mapping[str, Mutation] = {
    "a hold dropped at a split": _hold_dropped_at_a_split,
    "a marker ignored": _marker_ignored,
    "a residual kept twice": _residual_kept_twice,
    "a watermark combined by max": _watermark_as_max,
    "a late drop not counted": _drop_uncounted,
    "an input watermark that ignores buffered elements": _pending_ignored,
    "an input watermark forgotten while elements are buffered": _pending_forgotten,
    "the input watermark of an idle shard forgotten": _idle_at_the_beginning,
    "pane numbers continued when a session grows": _numbered_on,
    "elements that arrive in a drain not truncated": _drain_over,
    "the hold of a merged session lost": _merged_hold_lost,
    "state committed when bundles end": _state_committed_late,
    "an index read only once": _read_once,
    "a savepoint forgotten that was requested during a commit": _savepoint_forgotten,
    "a suspension ignored": _suspension_unheard,
    "timestamps observed earlier forgotten": _only_the_micro_batches,
    "unconfirmed timestamps forgotten": _doubts_forgotten,
    "timestamps ahead of the clock accepted": _ahead_accepted,
    "an idle input waited for forever": _silent_for_ever,
    "an input treated as idle at once": _silent_at_once,
    "an idle input of a shared observer waited for": _idle_one_counts,
    "the end of one shared input taken for the end of all": _end_of_one_counts,
    "a quantile of the newest micro-batch alone": _quantile_of_a_micro_batch,
    "an observed output that reports its stage's watermark": _observed_reports_own,
    "late panes delayed until the window expires": _late_panes_at_the_expiry,
    "a run of a window that overwrites another": _run_over_run,
    "later elements of a stored window lost": _rest_of_a_window_lost,
    "late elements placed before buffered ones": _late_ahead,
    "a level treated as idle despite its work": _rests_with_work,
    "one level too many treated as idle": _one_more_rests,
    "the end of time reported before stages have prepared": _end_reported_too_early,
    "all sources restarted when one joins": _begins_again,
    "a joining source never started": _never_begins,
    "a watermark lowered for a joining source": _watermark_lowered,
    "a takeover checked only after failed attempts": _takeover_checked_when_it_fails,
    "a takeover checked only at intervals": _takeover_checked_when_idle,
    **OF_TIMERS_AND_SIDES,
    **OF_THE_STORE,
    **OF_THE_DRIVER,
    **OF_LOOPS,
    **OF_BATCHES,
    **OF_RESCALING,
}
"""The mistakes by name."""


def found_by(name: str, seed: int) -> str:
    """Return the error with which the simulation of a seed finds a mistake; empty if it does not find it."""
    with MUTATIONS[name]():
        try:
            play(scenario_of(seed))
        except Exception as e:
            return f"{type(e).__name__}: {e}"
    return ""


def search(name: str, seeds: Sequence[int]) -> tuple[int, str] | None:
    """Return the first seed that finds a mistake, and its error."""
    for seed in seeds:
        if found := found_by(name, seed):
            return seed, found
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the search; return 1 if a mistake is not found."""
    parser = argparse.ArgumentParser(prog="python -m simulator.mutations", description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=seeds_of, default="0..499", metavar="A..B", help="both ends included")
    parser.add_argument("--event_log", action="store_true", help="also print the shortest story of each")
    parser.add_argument(
        "names", nargs="*", metavar="name", help=f"mistakes to search for (default: all): {', '.join(MUTATIONS)}"
    )
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.names if name not in MUTATIONS]:
        parser.error(f"no such mistake: {', '.join(unknown)}")
    missed = 0
    for name in options.names or MUTATIONS:
        found = search(name, options.seeds)
        missed += found is None
        text = "not found" if found is None else f"seed {found[0]}: {found[1]}"
        print(f"{name}: {text}", flush=True)  # noqa: T201 - a command speaks
        if found is not None and options.event_log:
            with MUTATIONS[name]():
                event_log = played(scenario_of(found[0]))
                print(shrunk(event_log) if isinstance(event_log, Failure) else "", flush=True)  # noqa: T201
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
