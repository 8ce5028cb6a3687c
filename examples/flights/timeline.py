"""A picture of the streaming job: its watermarks while the year passes, what holds them, and how late data is.

Knows matplotlib; must not know Beam.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple

PICTURE = "watermark.png"
DELAYS = (10, 60, 180)
"""Minutes of delay, for which the picture shows how many flights would be late."""
OBSERVED = "Replay flights"
"""Name of the stage in which the flights' watermark is observed."""
INK, FLIGHTS, RESULTS, KILLED = "#333333", "#3b6ea8", "#c2571a", "#a33a3a"
HOLDS = {
    "restriction": ("#3b6ea8", "o"),
    "observer": ("#7a5aa6", "s"),
    "side input": ("#4f9a63", "^"),
    "timer": ("#c9982b", "D"),
    "state": ("#8a6d5a", "v"),
    "elements": ("#c2571a", "P"),
}
"""Colour and mark of each kind of hold."""
OTHER = "#888888", "h"
ROWS = 8
"""Number of holders with their own row: those that held most often."""
END = 1e11
"""Seconds since 1970 that represent the end of time."""


class Held(NamedTuple):
    """A watermark that waits.

    Attributes:
        kind: the kind of its cause, as in `arcbeam status`.
        stage: the stage of the cause.
        time: the watermark, seconds since 1970.
    """

    kind: str
    stage: str
    time: float


class Look(NamedTuple):
    """A state of the job, as `arcbeam status` showed it.

    Attributes:
        at: seconds since the first observation.
        micro-batch: the newest.
        seen: the observed watermark of the flights, seconds since 1970.
        watermark: the earliest of all: everything before it has been output.
        rate: lines read per second.
        backlog: bytes that are not read yet.
        late: flights that were too late.
        held: what watermarks wait for.
    """

    at: float
    micro_batch: int
    seen: float
    watermark: float
    rate: float
    backlog: float
    late: int
    held: tuple[Held, ...] = ()

    @staticmethod
    def of(record: Mapping[str, Any], at: float) -> Look:
        """Convert a record of `arcbeam status --json`."""
        own = [stage["outputs"] for stage in record["stages"] if stage["stage"].startswith(OBSERVED)]
        observed = [out["watermark"] / 1e6 for outputs in own for out in outputs]
        return Look(
            at,
            record["micro_batch"],
            max((time for time in observed if time < END), default=0.0),
            record["watermark"] / 1e6,
            record["rate"] or 0.0,
            record["backlog"],
            sum(stage["total"].get("late", 0) for stage in record["stages"]),
            tuple(Held(each["kind"], each["stage"], each["time"] / 1e6) for each in record["causes"]),
        )


def draw(
    picture: Path,
    looks: Sequence[Look],
    killed: float,
    resumed: float,
    lateness: Sequence[float],
    delay: float,
    how: str = "kill -9",
) -> None:
    """Write the picture as PNG.

    Args:
        picture: its file.
        looks: the observed states, in order.
        killed: when the driver was killed; in the same seconds.
        resumed: when another driver began.
        lateness: for each flight, minutes behind the latest schedule before it.
        delay: minutes that the job allowed.
        how: how the job was stopped half-way.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shown = [look for look in looks if 0 < look.watermark < END]
    after = next(
        (look.at for look in looks if look.at > resumed and look.micro_batch > _micro_batch_at(looks, killed)), resumed
    )
    with plt.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "text.color": INK}):
        figure = plt.figure(figsize=(14, 7.5), dpi=120)
        grid = figure.add_gridspec(2, 2, width_ratios=(1.6, 1), height_ratios=(1.6, 1))
        left, right = figure.add_subplot(grid[0, 0]), figure.add_subplot(grid[:, 1])
        holders = figure.add_subplot(grid[1, 0], sharex=left)
        for name, color in (("seen", FLIGHTS), ("watermark", RESULTS)):
            furthest = accumulate((getattr(look, name) for look in shown), max)
            times = [datetime.fromtimestamp(each, UTC) for each in furthest]
            label = {"seen": "observed: flights seen, minus delay", "watermark": "earliest: everything output"}[name]
            left.plot([look.at for look in shown], times, color=color, label=label, linewidth=1.6)
        for axes in (left, holders):
            axes.axvline(killed, color=KILLED, linewidth=1)
            axes.axvspan(killed, after, color=KILLED, alpha=0.08, linewidth=0)
        left.annotate(how, (killed, 1), (3, -8), ("data", "axes fraction"), "offset points", color=KILLED)
        _held_times(left, shown)
        _holders(holders, shown)
        left.set_title(f"Watermarks while the year passes, and half-way: {how}", loc="left", size=10)
        left.legend(frameon=False, loc="lower right", ncols=2, fontsize=8)
        _lateness(right, lateness, delay)
        figure.tight_layout()
        figure.savefig(picture)
        plt.close(figure)


def _held_times(axes: Any, looks: Sequence[Look]) -> None:
    """Draw the earliest watermark of each kind of holder, once per micro-batch; hollow, because marks may overlap."""
    firsts = [
        look for before, look in pairwise([None, *looks]) if before is None or look.micro_batch != before.micro_batch
    ]
    for kind in _kinds(looks):
        color, mark = HOLDS.get(kind, OTHER)
        points = [
            (look.at, min(times))
            for look in firsts
            if (times := [held.time for held in look.held if held.kind == kind and 0 < held.time < END])
        ]
        if points:
            ats, times = zip(*points, strict=True)
            moments = [datetime.fromtimestamp(time, UTC) for time in times]
            axes.scatter(ats, moments, edgecolors=color, facecolors="none", marker=mark, s=40, label=f"held: {kind}")


def _holders(axes: Any, looks: Sequence[Look]) -> None:
    """Draw which holder holds when, in a row for each."""
    often = Counter((held.kind, held.stage) for look in looks for held in {*look.held})
    for row, ((kind, stage), _) in enumerate(often.most_common(ROWS)):
        spans = [
            (look.at, max(then.at - look.at, 0.05))
            for look, then in pairwise(looks)
            if any((held.kind, held.stage) == (kind, stage) for held in look.held)
        ]
        axes.broken_barh(spans, (row - 0.35, 0.7), color=HOLDS.get(kind, OTHER)[0], linewidth=0)
    named = [f"{kind} in {_short(stage)}" for (kind, stage), _ in often.most_common(ROWS)]
    axes.set_yticks(range(len(named)), named, size=8)
    axes.invert_yaxis()
    axes.set_xlabel("seconds by the clock")
    axes.set_title("What watermarks wait for, and when", loc="left", size=10)


def _kinds(looks: Sequence[Look]) -> list[str]:
    found = {held.kind for look in looks for held in look.held}
    return [*(kind for kind in HOLDS if kind in found), *sorted(found - HOLDS.keys())]


def _short(stage: str) -> str:
    """Return a stage's short name: its transform's."""
    name = stage.partition("/")[0]
    return name if len(name) <= 24 else f"{name[:23]}…"


def _micro_batch_at(looks: Sequence[Look], at: float) -> int:
    return max((look.micro_batch for look in looks if look.at <= at), default=0)


def _lateness(axes: Any, lateness: Sequence[float], delay: float) -> None:
    """Draw how many flights are how late, and how many would be late with some delays."""
    hours = [minutes / 60 for minutes in lateness]
    axes.hist(hours, bins=[quarter / 4 for quarter in range(4 * 25)], color=FLIGHTS, alpha=0.6)
    axes.set_yscale("log")
    top = axes.get_ylim()[1]
    for place, minutes in enumerate(sorted({*DELAYS, int(delay)})):
        late = sum(each > minutes for each in lateness)
        axes.axvline(minutes / 60, color=KILLED if minutes == delay else INK, linewidth=0.8)
        text = f"{minutes} min: {late:,} flights ({late / len(lateness):.1%}) late"
        # On white, because the lines of longer delays cross it.
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
        axes.annotate(text, (minutes / 60, top), (4, -12 * place - 8), textcoords="offset points", size=8, bbox=box)
    axes.set_xlabel("hours behind the latest schedule seen")
    axes.set_ylabel("flights")
    axes.set_title("How late flights are, and how many stay late with a delay", loc="left", size=10)
