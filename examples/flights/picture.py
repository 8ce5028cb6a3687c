"""A picture of the results: delay over the year, by hour of the day, and by weekday.

Knows the columns of the results and matplotlib; must not know Beam.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from .report import group, read_rows
from .summaries import Delays

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PICTURE = "flights.png"
COLORS = ("#3b6ea8", "#c2571a", "#4b8b3b", "#7a4fa3")
NAMES = {"EWR": "Newark (EWR)", "JFK": "Kennedy (JFK)", "LGA": "LaGuardia (LGA)"}
WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
INK = "#333333"
FEW = 100
"""Minimum departures of a cell of the map or a point of a line; with fewer, the mean is not significant."""
WORST_DAYS = 4
APART = timedelta(12)


def draw(results: Path, picture: Path) -> None:
    """Write the picture as PNG.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    days = group(read_rows(results, "days"), "airport", "day")
    week = list(read_rows(results, "week"))
    airports = sorted({airport for airport, _ in days})
    style = {
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": "#999999",
        "text.color": INK,
        "axes.labelcolor": INK,
        "xtick.color": INK,
        "ytick.color": INK,
    }
    with plt.rc_context(style):
        figure = plt.figure(figsize=(13, 9.5), dpi=120)
        top, bottom = figure.subfigures(2, 1, height_ratios=(1.25, 1))
        panels = top.subplots(len(airports), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
        top.subplots_adjust(left=0.06, right=0.975, top=0.86, bottom=0.06, hspace=0.16)
        top.suptitle("Departure delays from New York, 2013", x=0.06, y=0.985, ha="left", size=15, weight="bold")
        top.text(0.06, 0.905, "Mean delay of a day in minutes (bars), and over the week around it (line)", size=10)
        for panel, airport, color in zip(panels, airports, COLORS, strict=False):
            _year(panel, {date.fromisoformat(day): each for (a, day), each in days.items() if a == airport}, color)
            name = NAMES.get(airport, airport)
            panel.set_title(name, loc="left", y=0.8, x=0.006, size=10, color=color, weight="bold")
        left, right = bottom.subplots(1, 2, width_ratios=(1.5, 1))
        bottom.subplots_adjust(left=0.06, right=0.975, top=0.88, bottom=0.11, wspace=0.14)
        _week(left, group(week, "weekday", "hour"))
        _day(right, group(week, "airport", "hour"), airports)
        figure.savefig(picture)
        plt.close(figure)


def running_mean(days: Mapping[date, Delays], reach: int = 3) -> list[tuple[date, float]]:
    """Return the mean delay of the departures of each day and of `reach` days before and after it."""
    means = []
    for day in sorted(days):
        near = [days[each] for each in (day + timedelta(d) for d in range(-reach, reach + 1)) if each in days]
        departed = sum(each.departed for each in near)
        if departed:
            means.append((day, sum(each.out for each in near) / departed))
    return means


def worst_days(days: Mapping[date, Delays]) -> list[date]:
    """Return the days with the longest mean delays, worst first, so far apart that their dates fit side by side."""
    chosen: list[date] = []
    for day in sorted(days, key=lambda day: -days[day].mean_out):
        if len(chosen) < WORST_DAYS and all(abs(day - other) >= APART for other in chosen):
            chosen.append(day)
    return chosen


def _year(axes: Axes, days: Mapping[date, Delays], color: str) -> None:
    """Draw bars of the days, a line of the weeks, and the dates of the worst days."""
    from matplotlib.dates import DateFormatter, MonthLocator

    shown = sorted(day for day, each in days.items() if each.departed)
    axes.bar(shown, [days[day].mean_out for day in shown], width=1.0, color=color, alpha=0.4, linewidth=0)
    smooth = running_mean(days)
    axes.plot([day for day, _ in smooth], [mean for _, mean in smooth], color=color, linewidth=1.6)
    for day in worst_days(days):
        axes.annotate(
            f"{day:%-d %b}", (day, days[day].mean_out), (0, 2), textcoords="offset points", ha="center", size=7.5
        )
    axes.axhline(0, color="#999999", linewidth=0.8)
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_xlim(shown[0] - timedelta(1), shown[-1])
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, -10), 1.08 * high)
    axes.xaxis.set_major_locator(MonthLocator())
    axes.xaxis.set_major_formatter(DateFormatter("%b"))
    for label in axes.get_xticklabels():
        label.set_horizontalalignment("left")


def _week(axes: Axes, cells: Mapping[tuple[str, ...], Delays]) -> None:
    """Draw a heat map: hour of the day by weekday."""
    hours = _hours(cells)
    grid = [[_mean(cells.get((str(weekday), str(hour)))) for hour in hours] for weekday in range(len(WEEKDAYS))]
    known = [mean for line in grid for mean in line if mean is not None]
    image = axes.imshow(
        [[float("nan") if mean is None else mean for mean in line] for line in grid],
        cmap="YlOrRd",
        aspect="auto",
        vmin=0,
        vmax=max(known, default=1.0),
    )
    for y, line in enumerate(grid):
        for x, mean in enumerate(line):
            if mean is not None:
                dark = mean > 0.62 * max(known)
                axes.text(x, y, f"{mean:.0f}", ha="center", va="center", size=8, color="white" if dark else INK)
    axes.set_xticks(range(len(hours)), [f"{hour}" for hour in hours])
    axes.set_yticks(range(len(WEEKDAYS)), WEEKDAYS)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_xlabel("hour of the scheduled departure, local time")
    axes.set_title("Where in the week it builds up: mean delay in minutes, all airports", loc="left", size=10)
    axes.figure.colorbar(image, ax=axes, pad=0.015, fraction=0.03).outline.set_visible(False)


def _day(axes: Axes, cells: Mapping[tuple[str, ...], Delays], airports: Sequence[str]) -> None:
    """Draw a line for each airport: mean delay by hour of the day."""
    for airport, color in zip(airports, COLORS, strict=False):
        line = [(hour, _mean(cells.get((airport, str(hour))))) for hour in _hours(cells)]
        points = [(hour, mean) for hour, mean in line if mean is not None]
        if points:
            axes.plot(*zip(*points, strict=True), color=color, linewidth=2, marker="o", markersize=3.5, label=airport)
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    axes.set_xticks([hour for hour in _hours(cells) if hour % 3 == 0])
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_xlabel("hour of the scheduled departure, local time")
    axes.set_title("Where in the day: mean delay in minutes", loc="left", size=10)
    axes.legend(frameon=False, loc="upper left")


def _hours(cells: Mapping[tuple[str, ...], Delays]) -> list[int]:
    """Return the hours of the day with enough flights to be drawn."""
    return sorted({int(hour) for (_, hour), each in cells.items() if _mean(each) is not None})


def _mean(each: Delays | None) -> float | None:
    return each.mean_out if each is not None and each.departed >= FEW else None
