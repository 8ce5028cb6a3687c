"""The output: rows for programs, a table to read, a section of benchmarks/records.md.

Owns units, medians and ratios. Must not know how anything was measured.
"""

from __future__ import annotations

import os
import platform
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from bench.peers import CORES, SETTINGS, Memory
from bench.works.registry import WORKS
from bench.works.work import TINY, Work

TITLES = {
    "arcbeam": "arcbeam",
    "rdd": "PySpark RDD",
    "frames": "PySpark DataFrame",
    "sql": "Spark SQL",
    "local": "Beam local",
}


@dataclass(slots=True)
class Series:
    """All runs of one work by one peer.

    Attributes:
        elements: elements of each run.
        runs: seconds of each run.
        memory: of a separate run, once it was made.
        error: what failed, if anything did; then the runs before it do not count.
    """

    work: Work
    peer: str
    elements: int
    runs: list[float] = field(default_factory=list)
    memory: Memory | None = None
    error: str = ""

    @property
    def unit(self) -> str:
        """Millions of elements per second; for a tiny pipeline, seconds."""
        return "M elements/s" if self.work.elements else "s"

    @property
    def values(self) -> list[float]:
        """One value per run, in `unit`."""
        if self.work.elements:
            return [self.elements / seconds / 1e6 for seconds in self.runs]
        return self.runs


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions of the measurement."""

    runs: int
    runs_of_ways: int
    started: str

    def lines(self) -> list[str]:
        """Return them as a Markdown list."""
        versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("apache-beam", "pyspark", "pyarrow"))
        settings = ", ".join(f"`{key}={value}`" for key, value in SETTINGS.items())
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
        return [
            f"- {self.started}; {os.cpu_count()} cores ({_processor()}), {memory:.0f} GiB of memory, "
            f"{platform.system()} {platform.machine()}.",
            f"- Python {platform.python_version()}, {versions}.",
            f"- The Spark peers share one session `local[{CORES}]` ({settings}); Beam's local runner has one process.",
            f"- Median of {self.runs} (of the ways: {self.runs_of_ways}); the peers take turns, each run after a small "
            "one of the same work, all of them after one of full size (whose memory is sampled, except for the ways).",
        ]


def rows(series: Sequence[Series]) -> list[dict[str, Any]]:
    """Return speed and peak memory of each work and peer, for build/bench.json."""
    found: list[dict[str, Any]] = []
    for one in series:
        base = next((s for s in series if s.work.name == one.work.name and s.peer == "rdd"), None)
        fixed = {"work": one.work.name, "peer": one.peer}
        if one.error:
            found.append({**fixed, "unit": one.unit, "median": None, "runs": [], "ratio_rdd": None, "error": one.error})
            continue
        extra = {"elements": one.elements}
        found.append({**fixed, **_row(one.unit, one.values, base.values if base else []), **extra})
        for part in ("total", "python", "jvm") if one.memory else ():
            values, reference = ([getattr(s.memory, part)] if s and s.memory else [] for s in (one, base))
            found.append({**fixed, **_row(f"MiB {part}", values, reference), **extra})
    return found


def _row(unit: str, values: list[float], reference: list[float]) -> dict[str, Any]:
    median = statistics.median(values)
    base = statistics.median(reference) if reference else 0.0
    return {
        "unit": unit,
        "median": round(median, 4),
        "runs": [round(value, 4) for value in values],
        "ratio_rdd": round(median / base, 3) if base else None,
    }


def speed_table(series: Sequence[Series], peers: Sequence[str]) -> list[list[str]]:
    """Return medians, and arcbeam's ratio to each other peer: above 1, arcbeam is faster (also for tiny works)."""
    others = [peer for peer in peers if peer != "arcbeam"] if "arcbeam" in peers else []
    table = [["work", "unit", *(TITLES[p] for p in peers), *(f"arcbeam / {TITLES[p]}" for p in others)]]
    for work in _works(series):
        mine = {s.peer: s for s in series if s.work is work}
        cells = [_value(mine.get(peer)) for peer in peers]
        ratios = [_ratio(mine.get("arcbeam"), mine.get(peer)) for peer in others]
        table.append([work.name, next(iter(mine.values())).unit, *cells, *ratios])
    return table


def ways_table(series: Sequence[Series]) -> list[list[str]]:
    """Return the ways to write it: medians and ratios as in the speed table, of the peers that have any."""
    found = {s.peer for s in series}
    table = speed_table(series, [peer for peer in TITLES if peer in found])
    what = ["what", *(work.what for work in _works(series))]
    return [[name, *cells, text] for (name, _, *cells), text in zip(table, what, strict=True)]


def memory_table(series: Sequence[Series], peers: Sequence[str]) -> list[list[str]]:
    """Return peak MiB: of Python, plus that of the JVM."""
    table = [["work", *(TITLES[p] for p in peers)]]
    for work in _works(series):
        mine = {s.peer: s for s in series if s.work is work}
        table.append([work.name, *(_memory(mine.get(peer)) for peer in peers)])
    return table


def as_text(table: Sequence[Sequence[str]]) -> str:
    """Align columns: the first to the left, numbers to the right."""
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    lines = []
    for row in table:
        cells = [c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def as_markdown(table: Sequence[Sequence[str]], left: int = 1) -> str:
    """Return a Markdown table; all but the first `left` columns are aligned to the right."""
    header, *body = [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in table]
    return "\n".join([header, f"|{'---|' * left}{'---:|' * (len(table[0]) - left)}", *body])


def section(series: Sequence[Series], peers: Sequence[str], conditions: Conditions) -> str:
    """Return the text between the markers in benchmarks/records.md."""
    works, ways = ([s for s in series if s.work.way is way] for way in (False, True))
    sizes = [["work", "what", "elements", f"elements, {TITLES['local']}"]]
    for work in _works(works):
        spark = next((s.elements for s in series if s.work is work and s.peer != "local"), None)
        local = next((s.elements for s in series if s.work is work and s.peer == "local"), None)
        numbers = ["-" if size is None else f"{size or TINY:,}" for size in (spark, local)]
        sizes.append([work.name, work.what, *numbers])
    errors = [f"- {s.work.name}, {TITLES[s.peer]}: {s.error}" for s in series if s.error]
    parts = [
        "Speed (medians), and how many times as fast arcbeam is:",
        as_markdown(speed_table(works, peers)),
        "Peak memory in MiB: Python's workers and the growth of the driver, plus the JVM.",
        as_markdown(memory_table(works, peers)),
        "\n".join(conditions.lines()),
        "Sizes:",
        as_markdown(sizes, left=2),
        *_ways_section(ways),
    ]
    if errors:
        parts += ["Failed:", "\n".join(errors)]
    return "\n\n".join(parts)


def _ways_section(ways: Sequence[Series]) -> list[str]:
    if not ways:
        return []
    sizes = {(s.elements, s.peer == "local") for s in ways}
    spark, local = (sorted({size for size, of in sizes if of is local}) for local in (False, True))
    text = f"{_either(spark)} elements" + (f"; {TITLES['local']}: {_either(local)}" if local else "")
    return [f"Ways to write it, in M elements/s ({text}):", as_markdown(ways_table(ways))]


def _either(sizes: Sequence[int]) -> str:
    return " or ".join(f"{size:,}" for size in sizes)


def replace_section(path: Path, text: str, name: str = "bench") -> None:
    """Write `text` between the markers of that name in a document.

    Raises:
        ValueError: the document has no such markers.
    """
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    document = path.read_text(encoding="utf-8")
    if begin not in document or end not in document:
        raise ValueError(f"{path.name} has no {begin} … {end}")
    head, tail = document.split(begin)[0], document.split(end)[1]
    path.write_text(f"{head}{begin}\n\n{text}\n\n{end}{tail}", encoding="utf-8")


def _works(series: Sequence[Series]) -> list[Work]:
    names = {s.work.name for s in series}
    return [work for work in WORKS.values() if work.name in names]


def _value(series: Series | None) -> str:
    if series is None or not (series.runs or series.error):
        return "-"
    return "failed" if series.error else f"{statistics.median(series.values):.3g}"


def _ratio(mine: Series | None, other: Series | None) -> str:
    if not mine or not other or mine.error or other.error or not mine.runs or not other.runs:
        return "-"
    ratio = statistics.median(mine.values) / statistics.median(other.values)
    return f"{ratio if mine.work.elements else 1 / ratio:.2f}"


def _memory(series: Series | None) -> str:
    if series is None or series.error or not series.memory:
        return "failed" if series is not None and series.error else "-"
    python, jvm = series.memory.python, series.memory.jvm
    return f"{python:.0f} + {jvm:.0f}" if jvm else f"{python:.0f}"


def _processor() -> str:
    try:
        found = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or "unknown processor"
