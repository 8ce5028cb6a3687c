"""What was seen of the streaming job, drawn: its watermark while the year passes, and how late flights come.

Knows matplotlib; nothing of Beam's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

PICTURE = "watermark.png"
DELAYS = (10, 60, 180)
"""Minutes, of which it is shown what they would leave behind."""
OBSERVED = "Replay flights"
"""How the stage is called in which the flights' watermark is observed."""
INK, FLIGHTS, RESULTS, KILLED = "#333333", "#3b6ea8", "#c2571a", "#a33a3a"


class Look(NamedTuple):
    """What `arcbeam status` has said.

    Attributes:
        at: when, seconds since the first look.
        step: the newest.
        seen: the watermark of the flights, as it is observed; seconds since 1970.
        watermark: the earliest of all: up to where everything is out.
        rate: lines a second that are read.
        backlog: bytes that are not read yet.
        late: flights that came too late.
    """

    at: float
    step: int
    seen: float
    watermark: float
    rate: float
    backlog: float
    late: int

    @staticmethod
    def of(record: Mapping[str, Any], at: float) -> Look:
        """What a record of `arcbeam status --json` says."""
        own = [stage["outputs"] for stage in record["stages"] if stage["stage"].startswith(OBSERVED)]
        observed = [out["watermark"] / 1e6 for outputs in own for out in outputs]
        return Look(
            at,
            record["step"],
            max((time for time in observed if time < 1e11), default=0.0),
            record["watermark"] / 1e6,
            record["rate"] or 0.0,
            record["backlog"],
            sum(stage["total"].get("late", 0) for stage in record["stages"]),
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
    """Writes the picture as PNG.

    Args:
        picture: its file.
        looks: in their order.
        killed: when the driver was; as in looks.
        resumed: when another one began.
        lateness: of each flight, minutes behind the latest schedule before it.
        delay: minutes that the job allowed.
        how: the job was stopped half-way.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shown = [look for look in looks if 0 < look.watermark < 1e11]
    with plt.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "text.color": INK}):
        figure, (left, right) = plt.subplots(1, 2, figsize=(13, 5), dpi=120, width_ratios=(1.5, 1))
        for name, color in (("seen", FLIGHTS), ("watermark", RESULTS)):
            furthest = accumulate((getattr(look, name) for look in shown), max)
            times = [datetime.fromtimestamp(each, UTC) for each in furthest]
            label = {"seen": "observed: flights seen, less delay", "watermark": "earliest: all of it is out"}[name]
            left.plot([look.at for look in shown], times, color=color, label=label, linewidth=1.6)
        left.axvline(killed, color=KILLED, linewidth=1)
        left.annotate(how, (killed, 1), (3, -8), ("data", "axes fraction"), "offset points", color=KILLED)
        after = next((look.at for look in looks if look.at > resumed and look.step > _step_at(looks, killed)), resumed)
        left.axvspan(killed, after, color=KILLED, alpha=0.08, linewidth=0)
        left.set_xlabel("seconds by the clock")
        left.set_title(f"Watermarks while the year passes, and half-way: {how}", loc="left", size=10)
        left.legend(frameon=False, loc="lower right")
        _lateness(right, lateness, delay)
        figure.tight_layout()
        figure.savefig(picture)
        plt.close(figure)


def _step_at(looks: Sequence[Look], at: float) -> int:
    return max((look.step for look in looks if look.at <= at), default=0)


def _lateness(axes: Any, lateness: Sequence[float], delay: float) -> None:
    """How many flights come how late, and what some delays would leave behind."""
    hours = [minutes / 60 for minutes in lateness]
    axes.hist(hours, bins=[step / 4 for step in range(4 * 25)], color=FLIGHTS, alpha=0.6)
    axes.set_yscale("log")
    top = axes.get_ylim()[1]
    for place, minutes in enumerate(sorted({*DELAYS, int(delay)})):
        behind = sum(each > minutes for each in lateness)
        axes.axvline(minutes / 60, color=KILLED if minutes == delay else INK, linewidth=0.8)
        text = f"{minutes} min: {behind:,} flights ({behind / len(lateness):.1%}) behind the watermark"
        # On white, for the lines of longer delays run through it.
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
        axes.annotate(text, (minutes / 60, top), (4, -12 * place - 8), textcoords="offset points", size=8, bbox=box)
    axes.set_xlabel("hours behind the latest schedule that has been seen")
    axes.set_ylabel("flights")
    axes.set_title("How late flights come, and what a delay leaves behind", loc="left", size=10)
