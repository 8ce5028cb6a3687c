"""Stories of triggers, in the form of the SDK's `trigger_transcripts.yaml` with extensions, played with our grouping.

Times are seconds; custom windows go by their names. Beyond the SDK's: `clock` (processing time), `dropped` (what came
to nothing since, as {value, window, reason}), `holds` (all holds, by window), `on_time_behavior`, `closing_behavior`,
`state` (windows that are `present`, `closed` or `absent`), `empty` (nothing is left in the state).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from arcbeam.engine.grouping import composites, triggers
from arcbeam.engine.grouping.delays import AlignTo, Delay
from arcbeam.engine.grouping.effects import DropHeld, DropLate, EmitPane
from arcbeam.engine.grouping.merging import CustomMerging, Merge, SessionMerging
from arcbeam.engine.grouping.record import Record
from arcbeam.engine.grouping.strategy import PaneTime, Strategy
from arcbeam.model.timestamps import Duration, Timestamp
from arcbeam.model.windows import GLOBAL_WINDOW, CustomWindow, IntervalWindow, Timing, Window
from arcbeam.testing import calendars
from arcbeam.testing import windowfns as windows
from tests.engine.grouping.grouping_shard import Shard

SECOND = 1_000_000


@dataclass(frozen=True)
class Clumps:
    """A custom merging function: windows of four seconds that touch or overlap become one, up to ten seconds of it."""

    def assign(self, timestamp: Timestamp) -> tuple[Window, ...]:
        return (IntervalWindow(timestamp, Timestamp(timestamp + 4 * SECOND)),)

    def merge(self, open: Any) -> Iterator[Merge]:
        clump: list[IntervalWindow] = []
        for window in [*sorted(open), None]:
            whole = [*clump, window]
            if window and (not clump or (window.start <= clump[-1].end and window.end - clump[0].start <= 10 * SECOND)):
                clump = whole
                continue
            if len(clump) > 1:
                end = max(one.end for one in clump)
                yield Merge(tuple(clump), IntervalWindow(clump[0].start, end))
            clump = [window]


@dataclass(frozen=True)
class Shifts:
    """Custom windows of a type of their own, that do not merge: early ones of ten seconds; late ones of the second five
    seconds of these, which end five seconds later.
    """

    def assign(self, timestamp: Timestamp) -> tuple[Window, ...]:
        start = timestamp // (10 * SECOND) * 10
        windows_ = [_shift("early", start, start + 10)]
        if timestamp >= (start + 5) * SECOND:
            windows_.append(_shift("late", start + 5, start + 15))
        return tuple(windows_)


def _shift(name: str, start: int, end: int) -> CustomWindow:
    return CustomWindow(f"{name} {start}".encode(), Timestamp(end * SECOND - 1))


@dataclass(frozen=True)
class Visits:
    """Custom windows of a type of their own, that merge: a visit ends four seconds after its last element."""

    def assign(self, timestamp: Timestamp) -> tuple[Window, ...]:
        return (_visit(timestamp, timestamp),)

    def merge(self, open: Any) -> Iterator[Merge]:
        spans = sorted(tuple(map(int, window.encoded.split(b"-"))) for window in open)
        while spans:
            first, last = spans[0]
            together = [span for span in spans if span[0] <= first]
            for span in spans[len(together) :]:
                if span[0] - max(end for _, end in together) >= 4:
                    break
                together.append(span)
            spans = spans[len(together) :]
            if len(together) > 1:
                last = max(end for _, end in together)
                merged = tuple(_visit(start * SECOND, end * SECOND) for start, end in together)
                yield Merge(merged, _visit(first * SECOND, last * SECOND))


def _visit(first: int, last: int) -> CustomWindow:
    return CustomWindow(f"{first // SECOND}-{last // SECOND}".encode(), Timestamp(last + 4 * SECOND - 1))


@dataclass(frozen=True)
class Transformed:
    """The SDK's `CustomTimestampingFixedWindowsWindowFn`."""

    fixed: windows.FixedWindows

    def assign(self, timestamp: Timestamp) -> tuple[Window, ...]:
        return self.fixed.assign(timestamp)


def _s(seconds: float) -> Duration:
    return Duration(round(seconds * SECOND))


_WINDOWFNS = {
    "GlobalWindows": windows.GlobalWindows,
    "FixedWindows": lambda size, offset=0: windows.FixedWindows(_s(size), _s(offset)),
    "SlidingWindows": lambda size, period, offset=0: windows.SlidingWindows(_s(size), _s(period), _s(offset)),
    "Sessions": lambda gap: windows.Sessions(_s(gap)),
    "Days": calendars.Days,
    "Months": calendars.Months,
    "Years": calendars.Years,
    "Clumps": Clumps,
    "Shifts": Shifts,
    "Visits": Visits,
    "CustomTimestampingFixedWindowsWindowFn": lambda size: Transformed(windows.FixedWindows(_s(size), _s(0))),
}
_TRIGGERS = {
    "Default": lambda: composites.Repeatedly(composites.AfterWatermark()),
    "AfterWatermark": composites.AfterWatermark,
    "AfterCount": triggers.AfterCount,
    "AfterProcessingTime": lambda delay=0, align=None: triggers.AfterTime(
        Delay(_s(delay)), *([AlignTo(_s(align), _s(0))] if align else [])
    ),
    "AfterSynchronizedProcessingTime": triggers.AfterSynchronizedTime,
    "AfterAll": composites.AfterAll,
    "AfterAny": composites.AfterAny,
    "AfterEach": composites.AfterEach,
    "OrFinally": composites.OrFinally,
    "Repeatedly": composites.Repeatedly,
    "Always": triggers.Always,
    "Never": triggers.Never,
}
_PANE_TIMES = {
    "OUTPUT_AT_EOW": PaneTime.END_OF_WINDOW,
    "OUTPUT_AT_EARLIEST": PaneTime.EARLIEST,
    "OUTPUT_AT_EARLIEST_TRANSFORMED": PaneTime.EARLIEST,
    "OUTPUT_AT_LATEST": PaneTime.LATEST,
}


def parsed(text: str, names: dict[str, Any]) -> Any:
    """Return the result of such an expression; no argument may be omitted."""
    made = eval(text, {"__builtins__": {}}, names)
    return made() if callable(made) else made


def shard_of(spec: dict[str, Any]) -> Shard:
    """A grouping as a transcript describes it."""
    windowfn = parsed(spec.get("window_fn", "GlobalWindows"), _WINDOWFNS)
    merging: Any = None
    if isinstance(windowfn, windows.Sessions):
        merging = SessionMerging()
    elif isinstance(windowfn, Clumps):
        merging = CustomMerging(windowfn, intervals=True)
    elif isinstance(windowfn, Visits):
        merging = CustomMerging(windowfn)
    pane_time = spec.get("timestamp_combiner", "OUTPUT_AT_EOW")
    transformed = pane_time.endswith("TRANSFORMED")
    strategy = Strategy(
        trigger=parsed(spec.get("trigger_fn", "Default"), _TRIGGERS),
        merging=merging,
        accumulating=spec.get("accumulation_mode", "accumulating").lower() == "accumulating",
        pane_time=_PANE_TIMES[pane_time],
        lateness=_s(spec.get("allowed_lateness", 0)),
        empty_on_time=spec.get("on_time_behavior", "FIRE_ALWAYS") == "FIRE_ALWAYS",
        empty_last=spec.get("closing_behavior", "EMIT_IF_NONEMPTY") == "EMIT_ALWAYS",
        output_time=(lambda window, time: Timestamp(time + 100 * SECOND)) if transformed else None,
    )
    return Shard(strategy, windowfn)


def bounds(window: Window) -> list[int] | str:
    if isinstance(window, IntervalWindow):
        return [window.start // SECOND, window.max_timestamp // SECOND]
    if isinstance(window, CustomWindow):
        return window.encoded.decode()
    return "global"


def described(pane: EmitPane) -> dict[str, Any]:
    return {
        "window": bounds(pane.window),
        "values": sorted(int(value) // SECOND for value in pane.contents),
        "timestamp": pane.timestamp // SECOND,
        "index": pane.pane.index,
        "nonspeculative_index": pane.pane.nonspeculative_index,
        "early": pane.pane.timing is Timing.EARLY,
        "on_time": pane.pane.timing is Timing.ON_TIME,
        "late": pane.pane.timing is Timing.LATE,
        "first": pane.pane.is_first,
        "final": pane.pane.is_last,
    }


def _dropped(drop: DropLate | DropHeld) -> dict[str, Any]:
    if isinstance(drop, DropLate):
        return {"value": int(drop.value) // SECOND, "window": bounds(drop.window), "reason": drop.reason.name.lower()}
    return {"window": bounds(drop.window), "held": sorted(int(value) // SECOND for value in drop.contents)}


def _matched(expected: list[dict[str, Any]], found: list[dict[str, Any]]) -> None:
    left = list(found)
    for one in expected:
        match = next((other for other in left if one.items() <= other.items()), None)
        assert match is not None, f"Unmatched output {one} in {found}"
        left.remove(match)
    assert not left, f"Unexpected output: {left}"


def tell(spec: dict[str, Any]) -> Shard:
    """Play a transcript; AssertionError if the grouping differs. Return the shard at its end."""
    shard = shard_of(spec)
    for line in spec["transcript"]:
        ((action, argument),) = line.items()
        if action in ("input", "watermark", "clock"):
            assert not shard.panes, f"Unexpected output: {[*map(described, shard.panes)]} before {action}: {argument}"
        match action:
            case "input":
                shard.add(round(time * SECOND) for time in argument)
            case "watermark":
                shard.advance(round(argument * SECOND))
            case "clock":
                shard.tick(round(argument * SECOND))
            case "expect":
                _matched(argument, [*map(described, shard.taken())])
            case "dropped":
                _matched(argument, [*map(_dropped, shard.dropped())])
            case "holds":
                assert {str(bounds(w)): at / SECOND for (_, w), at in shard.holds.items()} == {
                    str(hold["window"]): hold["at"] for hold in argument
                }
            case "state":
                check_state(shard, argument)
            case "empty":
                assert not len(shard.view)
                assert not shard.holds
                assert not shard.timers
            case _:
                raise ValueError(f"not known: {action}")
    assert not shard.panes, f"Unexpected output: {[*map(described, shard.panes)]} at the end"
    return shard


def check_state(shard: Shard, expected: dict[str, list[Any]]) -> None:
    """Return which windows are open, and which are closed and empty."""
    found = {"present": [], "closed": []}  # type: ignore[var-annotated]
    for key, data in shard.view.scan(b"g\0\0\0\1kw", b"g\0\0\0\1kx"):
        ordered = key[len(b"g\0\0\0\1kw") :]
        if not ordered:
            window: Window = GLOBAL_WINDOW
        elif isinstance(shard.windowfn, (Shifts, Visits)):
            window = CustomWindow.from_ordered(ordered)
        else:
            window = IntervalWindow.from_ordered(ordered)
        record = Record.unpack(data, 0)
        found["closed" if record.closed else "present"].append(bounds(window))
        assert not (record.closed and record.contents)
    for kind, windows_ in expected.items():
        for window in windows_:
            if kind == "absent":
                # A window whose trigger has finished is absent, except for that.
                assert window not in found["present"]
            else:
                assert window in found["closed" if kind == "tombstone" else kind], (window, found)


def read(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
