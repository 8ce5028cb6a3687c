"""`arcbeam status --history`: the figures of a streaming job over time, from its folder.

Owns the text. `arcbeam.streaming.status.history` makes the record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from arcbeam.console.output import CommandOutput, TextOutput

if TYPE_CHECKING:
    from arcbeam.store.blobs.durable import DurableBlobs

_BARS = "▁▂▃▄▅▆▇█"
_COLUMNS = 60
_EVENTS_SHOWN = 20


def show_history(out: CommandOutput, blobs: DurableBlobs) -> None:
    """Print the history in a job's folder."""
    from arcbeam.store.blobs.errors import StoreError
    from arcbeam.store.log.chain import read_newest
    from arcbeam.store.log.historyfile import history_in
    from arcbeam.streaming.status.history import history_record

    if read_newest(blobs) is None:
        raise StoreError(f"there is no job in '{blobs}'", "give the folder of the job (its --checkpoint_dir)")
    record = history_record(history_in(blobs))
    if not isinstance(out, TextOutput):
        out.record({**record, "folder": str(blobs)})
        return
    for line in history_lines(record):
        out.text(line)


def history_lines(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a history: for each resolution the job's and the stages' figures, then the events."""
    from arcbeam.streaming.status.history import STAGE_COUNTERS

    if not any(ring["points"] for ring in record["rings"]):
        yield "there are no figures over time: its driver writes them some seconds after it starts"
    for ring in record["rings"]:
        points = ring["points"]
        if not points:
            continue
        seconds = ring["width"] // 1_000_000
        yield f"{len(points)} points of {seconds} s, {_at(points[0]['time'])} to {_at(points[-1]['time'])}"
        yield _line("micro-batch, s", [_mean(point["job"]) for point in points])
        yield _line("watermark gap, s", [_seconds(point["job"].get("behind")) for point in points])
        yield _line("backlog", [_last(point["job"].get("backlog")) for point in points])
        yield _line("state, bytes", [_last(point["job"].get("state_bytes")) for point in points])
        names = dict.fromkeys(name for point in points for name in point["stages"])
        for name in names:
            of = [point["stages"].get(name, {}) for point in points]
            yield f"  {name}"
            for figure in STAGE_COUNTERS:
                yield _line(f"  {figure}", [each.get(figure) for each in of])
            if held := next((each["held"] for each in reversed(of) if each.get("held")), ""):
                yield f"    last held by: {held}"
    if record["events"]:
        yield "events"
    for event in record["events"][-_EVENTS_SHOWN:]:
        yield f"  {_at(event['time'])}  {event['kind']}: {event['text']}"


def _line(name: str, values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return f"  {name:<16} unknown"
    least, most = min(known), max(known)
    return f"  {name:<16} {sparkline(values)}  least {least:,.6g}, greatest {most:,.6g}, last {known[-1]:,.6g}"


def sparkline(values: Sequence[float | None]) -> str:
    """Return a line of bars, each the greatest of consecutive values; a space where none is known."""
    count = min(len(values), _COLUMNS)
    edges = [at * len(values) // count for at in range(count + 1)]
    parts = [[value for value in values[a:b] if value is not None] for a, b in pairwise(edges)]
    columns = [max(part) if part else None for part in parts]
    known = [value for value in columns if value is not None]
    least, span = min(known), max(known) - min(known)
    return "".join(
        " " if value is None else _BARS[round((value - least) / span * (len(_BARS) - 1)) if span else 0]
        for value in columns
    )


def _mean(job: Mapping[str, Any]) -> float | None:
    return job["seconds"] / job["micro_batches"] if job.get("micro_batches") else None


def _last(gauge: Sequence[float | None] | None) -> float | None:
    return gauge[2] if gauge else None


def _seconds(gauge: Sequence[float | None] | None) -> float | None:
    last = _last(gauge)
    return None if last is None else last / 1e6


def _at(time: int) -> str:
    return datetime.fromtimestamp(time / 1e6, UTC).isoformat(sep=" ", timespec="seconds").replace("+00:00", "Z")
