"""`arcbeam status`: where a streaming job stands, what each watermark waits for, and what would free it.

Owns how it is shown. What there is to show is `arcbeam.streaming.status.status`'s; a job server sends the same.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from arcbeam.cli.control import is_folder, opened
from arcbeam.cli.server import ENDPOINT, TLS_CA, TOKEN_FILE, client_of
from arcbeam.console.output import Output, TextOutput
from arcbeam.errors import SetupError
from arcbeam.model.commits import CommitMode
from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, MAX_TIMESTAMP, MIN_TIMESTAMP, behind_shown, long_shown
from arcbeam.store.log.jobname import called
from arcbeam.store.manifest.values import ENDED

if TYPE_CHECKING:
    from rich.console import Group

Record = Mapping[str, Any]
"""A status as JSON has it."""

_WAITING = (
    ("event_timers", "timer(s) for the watermark"),
    ("clock_timers", "timer(s) for the clock"),
    ("parked", "element(s) parked"),
    ("ordered", "element(s) for their turn"),
)
"""What waits, and how it is called; elements last."""

_ENDED = frozenset(map(str, ENDED))

_COLUMNS = {
    "stage": 0,
    "input at": 0,
    "since": 160,
    "output at": 0,
    "event times": 160,
    "in": 80,
    "out": 80,
    "late": 0,
    "keeps": 120,
    "waits": 120,
}
"""The columns of the table, and how wide a terminal must be that has them."""

_LONG_OVERDUE = 60.0
"""Seconds that work which is due may be late in a job that somebody runs: a micro-batch behind a backlog takes a
few."""

_LATE_NOTE = 20.0
"""Seconds by which the next note of a driver that lives may be late: clocks differ, and stores are slow."""

_AHEAD = 60.0
"""Seconds by which a watermark is not ahead of the clock where all clocks are right."""

_WIDE = 200
"""Columns of a table that does not go to a terminal."""


@click.argument("job")
@click.option("--watch", is_flag=True, help="Look again and again, until it has ended or Ctrl-C.")
@click.option("--every", type=click.FloatRange(0.1), default=1.0, show_default=True, help="Seconds between two looks.")
@ENDPOINT
@TOKEN_FILE
@TLS_CA
def status(
    out: Output,
    job: str,
    watch: bool,
    every: float,
    endpoint: str,
    token_file: Path | None,
    tls_ca: Path | None,
) -> None:
    """Show where JOB stands: watermarks of its stages, what holds each and since when, and what would free it.

    JOB is the id of a streaming job at the job server, or the folder or URL of one (its --checkpoint_dir), also if
    nobody runs it. With --json, times are microseconds since 1970; with --watch, a line for each look.
    """
    if is_folder(job):
        _show(out, lambda: _of_folder(job), watch, every)
        return
    try:
        with client_of(endpoint, token_file, tls_ca) as client:
            _show(out, lambda: client.status(job), watch, every)
    except SetupError as e:
        raise SetupError(f"{job!r} is no folder here, and {e.message}", e.remedy) from e


def _of_folder(folder: str) -> Record:
    from dataclasses import asdict

    from arcbeam.store.blobs.errors import StoreError
    from arcbeam.store.log.chain import UnreadableHead, read_newest
    from arcbeam.store.log.drivernote import driver_note_of
    from arcbeam.store.log.endnote import note_of
    from arcbeam.store.log.jobname import kept_name
    from arcbeam.store.log.troublenote import trouble_of
    from arcbeam.streaming.status.status import as_record, status_of, with_driver, with_trouble

    blobs = opened(folder)
    newest = read_newest(blobs)
    if newest is None:
        raise StoreError(f"there is no job in '{blobs}'", "name the folder that holds 'manifests'")
    if isinstance(newest, UnreadableHead):
        raise newest.error
    note = note_of(blobs, newest)
    status = with_trouble(status_of(newest, kept_name(blobs, newest)), None if note else trouble_of(blobs, newest))
    driver = None if note or newest.mode is CommitMode.SUSPENDED else driver_note_of(blobs, newest)
    record = as_record(with_driver(status, driver))
    return {**record, "folder": str(blobs), "ended": asdict(note) if note else None}


def _show(out: Output, look: Callable[[], Record], watch: bool, every: float) -> None:
    if not isinstance(out, TextOutput):
        while True:
            record = look()
            out.record({**record, "overdue": overdue(record), "silent": silent(record)})
            if not watch or _over(record):
                return
            time.sleep(every)
    from rich.console import Console

    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else _WIDE, highlight=False)
    if not watch or not console.is_terminal:
        while True:
            record = look()
            console.print(_drawn(record))
            for line in cause_lines(record["causes"]):
                # As they are, however long: they are copied, and searched.
                out.text(line)
            if not watch or _over(record):
                return
            sys.stdout.flush()
            time.sleep(every)
    from rich.live import Live
    from rich.text import Text

    record = look()
    try:
        with Live(console=console, auto_refresh=False, screen=True) as live:
            while not _over(record):
                drawn = _drawn(record, console.width)
                # In front of the table: a screen has an end.
                drawn.renderables.insert(1, Text("\n".join(("", *cause_lines(record["causes"])))))
                live.update(drawn, refresh=True)
                time.sleep(every)
                record = look()
    finally:
        # The screen is gone with what was on it.
        console.print(_drawn(record, console.width))
        console.print("\n".join(cause_lines(record["causes"])), markup=False)


def _over(record: Record) -> bool:
    """Whether nothing will change any more."""
    return bool(record.get("ended")) or record["mode"] in _ENDED


def _drawn(record: Record, width: int = _WIDE) -> Group:
    """The job in some lines, and a table of its stages: of what fits into so many columns."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    columns = [column for column, wanted in _COLUMNS.items() if width >= wanted]
    for column in columns:
        table.add_column(column, overflow="fold", justify="right" if column == "late" else "left")
    for stage in record["stages"]:
        cells = dict(zip(_COLUMNS, _cells(stage, record["time"]), strict=True))
        table.add_row(*(cells[column] for column in columns))
    return Group(Text("\n".join(_job_lines(record))), Text(""), table, Text(""))


def _job_lines(record: Record) -> Iterator[str]:
    ended, overdue = record.get("ended"), overdue_line(record)
    unsure = overdue or silent(record) is not None
    mode = ended["state"] if ended else f"{record['mode']}?" if unsure else record["mode"]
    behind = _behind(record["watermark"])
    # A server of an earlier version sends no name.
    if (name := record.get("name", "")) or record.get("folder"):
        yield called(name, record.get("folder", ""))
    if not record["micro_batch"]:
        # The opening of a job with a script has the script's first time, which is 0.
        began = f"; the job began {ago(record['time'])}" if record["time"] else ""
        yield f"the first micro-batch has not been committed yet{began}"
    yield (
        f"micro-batch {record['micro_batch']} ({mode}), {recorded(record, shown)}; "
        f"watermark {shown(record['watermark'])}{behind and f', {behind}'}"
    )
    if ended:
        why = f": {ended['why']}" if ended["why"] else ""
        yield f"nobody runs it: it is {ended['state']}{why}"
    elif driver := driver_line(record):
        yield driver
    elif overdue:
        yield overdue
    elif not _over(record) and time.time() - _committed(record) / 1e6 > _LONG_OVERDUE:
        by_script = record.get("committed") is not None
        before = "" if record.get("due") is None or by_script else f" before {shown(record['due'])}"
        yield f"nothing is due{before}; whether somebody runs it, only an answer tells: `arcbeam savepoint FOLDER` asks"
    seconds = record["seconds"]
    if seconds:
        parts = (("plan", "plan"), ("spark", "Spark"), ("user", "transforms"), ("commit", "commit of the one before"))
        told = ", ".join(f"{name} {seconds[part]:.2f} s" for part, name in parts if part in seconds)
        yield f"the micro-batch took {seconds['seconds']:.2f} s: {told}"
    rate = "unknown" if record["rate"] is None else f"{record['rate']:,.0f} elements/s"
    state = sum(record["state_bytes"].values()), sum(record["state_entries"].values())
    yield (
        f"rate {rate}; backlog: {record['restrictions']} restriction(s) of size {record['backlog']:g}; "
        f"state: {bytes_shown(state[0])}, {state[1]:,} rows"
    )


def _cells(stage: Mapping[str, Any], now: int) -> Sequence[str]:
    """What is in a row. Times of the day of `now` are without it."""
    outputs, many = stage["outputs"], len(stage["outputs"]) > 1

    def of_each(tell: Callable[[Mapping[str, Any]], str]) -> str:
        return "\n".join((f"{out['output']}: " if many else "") + tell(out) for out in outputs) or "-"

    def at(time: int) -> str:
        return shown(time).removeprefix(shown(now)[:11])

    def times(out: Mapping[str, Any]) -> str:
        return "-" if out["least"] is None else " / ".join(at(out[name]) for name in ("least", "mean", "most"))

    micro_batch, total, since = stage["micro_batch"], stage["total"], stage["input_since"]
    behind = _behind(stage["input"])
    # A server of another version says nothing of some of it.
    kept = stage.get("kept") or {}
    waits = [f"{kept[what]:,} {name}" for what, name in _WAITING if kept.get(what)]
    if size := kept.get("waiting_bytes"):
        waits[-1] += f" ({bytes_shown(size)})"
    waits += [f"{stage['restrictions']} restriction(s) of size {stage['backlog']:g}"] if stage["restrictions"] else []
    waits += [f"parked until {each}" for each in stage["parked"]]
    waits += [f"until {at(stage['next_event'])}"] if stage["next_event"] is not None else []
    waits += [f"until {at(stage['next_due'])} by the clock"] if stage["next_due"] is not None else []
    return (
        stage["stage"],
        at(stage["input"]) + (behind and f"\n{behind}"),
        "-" if since is None else str(since["micro_batch"]),
        of_each(lambda out: at(out["watermark"])),
        of_each(times),
        f"{micro_batch.get('read', 0):,} ({bytes_shown(stage['bytes_in'])}){_rate(stage, 'read_rate')}",
        of_each(lambda out: f"{out['elements']:,} ({bytes_shown(out['bytes'])})") + _rate(stage, "written_rate"),
        f"{total.get('late', 0):,}",
        (f"{kept['keys']:,} keys\n" if kept.get("keys") else "")
        + f"{stage.get('state_rows', 0):,} rows ({bytes_shown(stage.get('state_bytes', 0))})",
        "\n".join(waits) or "-",
    )


def _behind(watermark: int) -> str:
    """How far a watermark is behind the clock now; "" if it is at an end of time."""
    if not MIN_TIMESTAMP < watermark < END_OF_GLOBAL_WINDOW:
        return ""
    seconds = time.time() - watermark / 1e6
    if seconds > -_AHEAD:
        return behind_shown(seconds)
    return f"{long_shown(-seconds)} ahead of the clock"


def _rate(stage: Mapping[str, Any], which: str) -> str:
    rate = stage.get(which)
    return f"\n{rate:,.{0 if rate >= 10 else 1}f}/s" if rate else ""


def overdue(record: Record) -> float | None:
    """By how many seconds what is due is late, so much that nobody seems to run the job; None: it is not."""
    due = record.get("due")
    # What a driver says of itself is better than what is to be expected of one.
    if due is None or _over(record) or record.get("driver") or record.get("committed") is not None:
        return None
    late = time.time() - due / 1e6
    return None if late < _LONG_OVERDUE else late


def silent(record: Record) -> float | None:
    """For how many seconds the driver has written nothing, if a note is due; None: it lives, or left no note."""
    driver = record.get("driver")
    if not driver or _over(record):
        return None
    seconds = time.time() - driver["time"] / 1e6
    return seconds if seconds > driver["every"] + _LATE_NOTE else None


def driver_line(record: Record) -> str:
    """What the driver of a job does, or that it is silent; "" if it left nothing."""
    driver = record.get("driver")
    if not driver or _over(record):
        return ""
    who = f"driver {driver['driver']} (process {driver['pid']}), since {shown(driver['since'])}"
    if (seconds := silent(record)) is None:
        return f"{who}: {driver['doing']}"
    return (
        f"{who}, has written nothing for {long_shown(seconds)} and is perhaps dead; its last note: {driver['doing']}. "
        f"If it is dead, resume the job: `arcbeam resume FOLDER`"
    )


def overdue_line(record: Record) -> str:
    """That nobody seems to run a job; "" if nothing is due, or it has ended."""
    if overdue(record) is None:
        return ""
    due = record["due"]
    return (
        f"nobody seems to run it: what was due at {shown(due)} ({ago(due)}) has not run; "
        "see whether its driver is there, or go on with it by `arcbeam resume FOLDER`"
    )


def _committed(record: Record) -> int:
    """When the newest micro-batch was committed, by the clock of its driver."""
    committed = record.get("committed")
    return int(record["time"] if committed is None else committed)


def recorded(record: Record, shown: Callable[[int], str]) -> str:
    """When the newest micro-batch was committed, and what the clock of its script was then if the job has one."""
    when = _committed(record)
    if when == record["time"]:
        return f"recorded at {shown(when)} ({ago(when)})"
    return f"committed at {shown(when)} ({ago(when)}), at {shown(record['time'])} by the clock of its TestStream"


def ago(when: int) -> str:
    """How long ago a time is, for people."""
    return f"{long_shown(max(0.0, time.time() - when / 1e6))} ago"


def cause_lines(causes: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What watermarks wait for, and what would free each: two lines, and who waits."""
    if not causes:
        yield "no watermark waits for anything"
        return
    yield "what watermarks wait for"
    for cause in causes:
        yield f"  - {cause['text']}"
        yield f"    goes on when: {cause['frees']}"
        others = [stage for stage in cause["stages"] if stage != cause["stage"]]
        if others:
            yield f"    and with it: {', '.join(others)}"
        if not cause.get("decides", True):
            yield "    nothing waits for that: what comes out of the stage has watermarks of its own (WithWatermark)"


def shown(time: int) -> str:
    """A time for people, in UTC."""
    if time <= MIN_TIMESTAMP or time >= MAX_TIMESTAMP:
        return "beginning" if time <= MIN_TIMESTAMP else "end"
    if time == END_OF_GLOBAL_WINDOW:
        return "end of the global window"
    try:
        when = datetime.fromtimestamp(time // 1_000_000, UTC).replace(microsecond=time % 1_000_000)
    except (OverflowError, ValueError, OSError):
        return f"{time} µs"
    return when.isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")


def bytes_shown(size: float) -> str:
    """A number of bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.4g} TB"
