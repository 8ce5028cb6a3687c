"""The results, read back and printed as tables. Knows the columns of the results; must not know Beam."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from .summaries import Delays, add

Row = dict[str, str]


def read_rows(results: Path, name: str) -> Iterator[Row]:
    """Yield the rows of all shards of a result, in no particular order."""
    for shard in sorted(results.glob(f"{name}-*.csv")):
        with open(shard, newline="", encoding="utf-8") as lines:
            yield from csv.DictReader(lines)


def delays_of(row: Row) -> Delays:
    """Return the row's counts and sums."""
    return Delays(*(int(row[column]) for column in Delays._fields))


def group(rows: Iterable[Row], *columns: str) -> dict[tuple[str, ...], Delays]:
    """Add delays up by the values of some columns, in their order."""
    groups: dict[tuple[str, ...], Delays] = {}
    for row in rows:
        key = tuple(row[column] for column in columns)
        groups[key] = add(groups.get(key, Delays()), delays_of(row))
    return dict(sorted(groups.items()))


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Format a titled table; columns with only numbers are aligned to the right."""
    body = [[_cell(value) for value in row] for row in rows]
    raw = [list(column) for column in zip(*body, strict=True)] or [[] for _ in columns]
    widths = [max(map(len, [name, *cells])) for name, cells in zip(columns, raw, strict=True)]
    right = [bool(cells) and all(_is_number(cell) for cell in cells) for cells in raw]

    def line(cells: Sequence[str]) -> str:
        aligned = (
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(cells, widths, right, strict=True)
        )
        return ("  " + "  ".join(aligned)).rstrip()

    rule = "  " + "  ".join("-" * width for width in widths)
    return "\n".join([title, line(columns), rule, *(line(cells) for cells in body)]) + "\n"


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _is_number(cell: str) -> bool:
    return cell.replace(",", "").replace(".", "").replace("%", "").lstrip("-").isdigit() or cell == "-"


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}%" if whole else "-"


def report(results: Path) -> Iterator[str]:
    """Yield the tables, one after another."""
    yield _airports(results)
    yield _hours(results)
    yield _weather(results)
    yield _routes(results, "mean", "Routes with the longest mean departure delay (one flight a day at least)")
    yield _routes(results, "total", "Routes with the most delay in all")
    yield _bursts(results)


def _airports(results: Path) -> str:
    groups = group(read_rows(results, "days"), "airport")
    everything = Delays()
    for each in groups.values():
        everything = add(everything, each)
    rows = [
        (
            name,
            each.scheduled,
            each.cancelled,
            _share(each.cancelled, each.scheduled),
            each.diverted,
            _share(each.late, each.departed),
            each.mean_out,
            each.mean_inbound,
            each.worst,
        )
        for name, each in [*((key[0], value) for key, value in groups.items()), ("All", everything)]
    ]
    unreadable = sum(1 for _ in read_rows(results, "unreadable"))
    return table(
        f"Airports ({unreadable:,} unreadable lines; delays in minutes; late is 15 minutes or more)",
        ("From", "Scheduled", "Cancelled", "Share", "Diverted", "Late", "Mean out", "Mean in", "Longest"),
        rows,
    )


def _hours(results: Path) -> str:
    groups = group(read_rows(results, "week"), "hour", "airport")
    airports = sorted({airport for _, airport in groups})
    hours = sorted({hour for hour, _ in groups}, key=int)
    rows = []
    for hour in hours:
        here = [groups.get((hour, airport), Delays()) for airport in airports]
        if any(each.departed for each in here):
            means = [each.mean_out if each.departed else "-" for each in here]
            rows.append((f"{int(hour):02d}:00", *(each.scheduled for each in here), *means))
    return table(
        "Mean departure delay by hour of the day, local time",
        ("Hour", *(f"Flights {airport}" for airport in airports), *(f"Delay {airport}" for airport in airports)),
        rows,
    )


def _weather(results: Path) -> str:
    groups = group(read_rows(results, "weather"), "measure", "class")
    rows = []
    before = ""
    for (measure, name), each in groups.items():
        rows.append(
            (
                measure if measure != before else "",
                name[2:],
                each.scheduled,
                _share(each.cancelled, each.scheduled),
                _share(each.late, each.departed),
                each.mean_out,
            )
        )
        before = measure
    return table(
        "Weather in the hour of the scheduled departure",
        ("Measure", "Class", "Flights", "Cancelled", "Late", "Mean delay"),
        rows,
    )


def _routes(results: Path, name: str, title: str) -> str:
    rows = [(row, delays_of(row)) for row in read_rows(results, f"routes_by_{name}")]
    rows.sort(key=lambda item: -(item[1].mean_out if name == "mean" else item[1].out))
    return table(
        title,
        ("Route", "To", "Flights", "Cancelled", "Late", "Mean delay", "Hours in all"),
        [
            (
                f"{row['origin']}-{row['destination']}",
                row["name"] or "(not in airports.csv)",
                each.scheduled,
                _share(each.cancelled, each.scheduled),
                _share(each.late, each.departed),
                each.mean_out,
                round(each.out / 60),
            )
            for row, each in rows
        ],
    )


def _bursts(results: Path) -> str:
    rows = sorted(read_rows(results, "bursts"), key=lambda row: -int(row["minutes"]))
    return table(
        "Largest bursts: departures delayed by an hour or more, less than half an hour apart",
        ("From", "First", "Last", "Flights", "Mean delay", "Longest", "Wind to mph", "Rain to in/h", "Sight from mi"),
        [
            (
                row["airport"],
                row["first"],
                row["last"],
                int(row["flights"]),
                int(row["minutes"]) / int(row["flights"]),
                int(row["worst"]),
                "-" if float(row["wind"]) < 0 else float(row["wind"]),
                f"{float(row['rain']):.2f}",
                float(row["visibility"]),
            )
            for row in rows
        ],
    )
