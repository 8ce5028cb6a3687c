"""`arcbeam status`: the progress of a streaming job, what each watermark waits for, and what would release it.

Owns the output. `arcbeam.streaming.status.status` makes the record; a job server sends the same record.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from arcbeam.cli.control import is_folder, opened
from arcbeam.cli.history import show_history
from arcbeam.cli.server import ENDPOINT, TLS_CA, TOKEN_FILE, client_of
from arcbeam.console.commandlines import command_line
from arcbeam.console.output import Output, TextOutput
from arcbeam.errors import SetupError
from arcbeam.model.texts import visible
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, behind_shown, long_shown
from arcbeam.store.log.jobname import job_label
from arcbeam.streaming.status.headline import causes_of, error_of, headline, stopped
from arcbeam.streaming.status.status import drain_line
from arcbeam.streaming.status.words import (
    LONG_OVERDUE,
    Record,
    backlog_shown,
    bytes_shown,
    clock,
    committed_at,
    driver_line,
    gap_of,
    has_begun,
    is_over,
    overdue,
    recorded,
    shown,
    silent,
    state_of,
)

if TYPE_CHECKING:
    from rich.table import Table

_WAITING = (
    ("event_timers", "timer(s) for the watermark"),
    ("clock_timers", "timer(s) for the clock"),
    ("blocked", "blocked element(s)"),
    ("ordered", "element(s) queued by key"),
)
"""What waits: its field, and its name for people; elements last."""

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
"""The columns of the table, each with the width that a terminal needs to show it."""

_AHEAD = 60.0
"""Seconds: a watermark that is farther ahead of the clock shows that a clock or an event time is wrong."""

_WIDE = 200
"""Width of a table that is not printed to a terminal."""


@click.argument("job")
@click.option("--watch", is_flag=True, help="Refresh until the job ends.")
@click.option(
    "--every",
    type=click.FloatRange(0.1),
    metavar="SECONDS",
    default=1.0,
    show_default=True,
    help="With --watch: time between refreshes.",
)
@click.option("--history", is_flag=True, help="Show figures over time instead. JOB must be a folder or URL.")
@ENDPOINT
@TOKEN_FILE
@TLS_CA
def status(
    out: Output,
    job: str,
    watch: bool,
    every: float,
    history: bool,
    endpoint: str,
    token_file: Path | None,
    tls_ca: Path | None,
) -> None:
    """Show progress and blockers of JOB.

    Prints the watermarks, what holds each of them and since when, and what would release it.

    JOB is the id of a streaming job at the job server, or its folder or URL (--checkpoint_dir), also when no driver
    runs it. With --json, times are microseconds since 1970, and --watch prints one object a line.
    """
    if history:
        if watch or not is_folder(job):
            raise SetupError(
                "--history reads the folder of a job, once",
                "give the folder or URL of the job (its --checkpoint_dir), without --watch",
            )
        show_history(out, opened(job))
        return
    if is_folder(job):
        from arcbeam.streaming.status.folder import record_of

        _show(out, lambda: record_of(opened(job)), watch, every)
        return
    try:
        with client_of(endpoint, token_file, tls_ca) as client:
            _show(out, lambda: client.status(job), watch, every)
    except SetupError as e:
        raise SetupError(f"{job!r} is not a folder, so it must be the id of a job: {e.message}", e.remedy) from e


def _show(out: Output, look: Callable[[], Record], watch: bool, every: float) -> None:
    if not isinstance(out, TextOutput):
        while True:
            record = look()
            more = {"overdue": overdue(record), "silent": silent(record), "headline": headline(record).as_record()}
            out.record({**record, **more})
            if not watch or is_over(record):
                return
            time.sleep(every)
    from rich.console import Console, Group

    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else _WIDE, highlight=False)
    if not watch or not console.is_terminal:
        while True:
            record = look()
            # Without wrapping, however long: users copy and search these lines.
            for line in (*_job_lines(record), ""):
                out.text(line)
            console.print(_table(record))
            for line in ("", *cause_lines(record)):
                out.text(line)
            if not watch or is_over(record):
                return
            sys.stdout.flush()
            time.sleep(every)
    from rich.live import Live
    from rich.text import Text

    record = look()
    try:
        with Live(console=console, auto_refresh=False, screen=True) as live:
            while not is_over(record):
                # The causes before the table, which may be longer than the screen.
                lines = "\n".join((*_job_lines(record), "", *cause_lines(record), ""))
                live.update(Group(Text(visible(lines)), _table(record, console.width)), refresh=True)
                time.sleep(every)
                record = look()
    finally:
        # The end of the alternate screen removed its content.
        for line in (*_job_lines(record), ""):
            out.text(line)
        console.print(_table(record, console.width))
        for line in ("", *cause_lines(record)):
            out.text(line)


def _table(record: Record, width: int = _WIDE) -> Table:
    """Return a table of a job's stages with the columns that fit into a width."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    columns = [column for column, wanted in _COLUMNS.items() if width >= wanted]
    for column in columns:
        table.add_column(column, overflow="fold", justify="right" if column == "late" else "left")
    for stage in record["stages"]:
        cells = dict(zip(_COLUMNS, _cells(record, stage), strict=True))
        table.add_row(*(Text(visible(cells[column])) for column in columns))
    return table


def _job_lines(record: Record) -> Iterator[str]:
    """Yield lines about a job; the first one is its condition."""
    is_stopped, condition = stopped(record) is not None, headline(record)
    yield condition.line
    mode = state_of(record)
    lag = _gap(record, record["watermark"])
    # A server of an older version sends no name.
    if (name := record.get("name", "")) or record.get("folder"):
        yield job_label(name, record.get("folder", ""))
    last = f"last micro-batch: {record['micro_batch']}, {recorded(record, shown)}"
    yield (
        f"job: {mode}; {last if has_begun(record) else 'no micro-batch has been committed yet'}; "
        f"watermark {_watermark(record['watermark'])}{lag and f', {lag}'}"
    )
    if why := error_of(record):
        yield why
    if not is_stopped and (driver := driver_line(record)):
        yield driver
    elif not is_stopped and time.time() - committed_at(record) / 1e6 > LONG_OVERDUE:
        by_script = record.get("scripted")
        before = "" if record.get("due") is None or by_script else f" before {shown(record['due'])}"
        yield (
            f"nothing is due{before}; to check whether a driver is running this job, request a savepoint, which only a "
            "driver takes" + (f": {command_line('savepoint', folder)}" if (folder := record.get("folder")) else "")
        )
    if not is_stopped and (drains := drain_line(record)) and drains != condition.text:
        yield drains
    seconds = record["seconds"]
    if seconds:
        parts = (("plan", "plan"), ("spark", "Spark"), ("user", "transforms"), ("commit", "previous commit"))
        phases = ", ".join(f"{name} {seconds[part]:.2f} s" for part, name in parts if part in seconds)
        yield f"the micro-batch took {seconds['seconds']:.2f} s: {phases}"
    rate = "unknown" if record["rate"] is None else f"{record['rate']:,.0f} elements/s"
    state = sum(record["state_bytes"].values()), sum(record["state_entries"].values())
    yield (
        f"rate {rate}; backlog: {record['restrictions']} restriction(s) of size {backlog_shown(record['backlog'])}; "
        f"state: {bytes_shown(state[0])}, {state[1]:,} rows"
    )


def _cells(record: Record, stage: Mapping[str, Any]) -> Sequence[str]:
    """Return the cells of a stage's row. Times on the day of the micro-batch omit the date."""
    now = record["time"]
    outputs, many = stage["outputs"], len(stage["outputs"]) > 1

    def of_each(cell: Callable[[Mapping[str, Any]], str]) -> str:
        return "\n".join((f"{out['output']}: " if many else "") + cell(out) for out in outputs) or "-"

    def at(time: int) -> str:
        return shown(time).removeprefix(shown(now)[:11])

    def times(out: Mapping[str, Any]) -> str:
        return "-" if out["least"] is None else " / ".join(at(out[name]) for name in ("least", "mean", "most"))

    micro_batch, total, since = stage["micro_batch"], stage["total"], stage["input_since"]
    lag = _gap(record, stage["input"])
    # A server of another version may omit some fields.
    kept = stage.get("kept") or {}
    waits = [f"{kept[what]:,} {name}" for what, name in _WAITING if kept.get(what)]
    if size := kept.get("waiting_bytes"):
        waits[-1] += f" ({bytes_shown(size)})"
    waits += (
        [f"{stage['restrictions']} restriction(s) of size {backlog_shown(stage['backlog'])}"]
        if stage["restrictions"]
        else []
    )
    waits += [f"blocked until {each}" for each in stage["blocked"]]
    waits += [f"until {at(stage['next_event'])}"] if stage["next_event"] is not None else []
    waits += [f"until {at(stage['next_due'])} of processing time"] if stage["next_due"] is not None else []
    return (
        stage["stage"],
        at(stage["input"]) + (lag and f"\n{lag}"),
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


def _watermark(time: int) -> str:
    """Return a watermark within a sentence."""
    return shown(time) if MIN_TIMESTAMP < time < MAX_TIMESTAMP else f"at the {shown(time)} of time"


def _gap(record: Record, watermark: int) -> str:
    """Return the gap of a watermark for people; "" if it is at an end of time."""
    gap = gap_of(record, watermark)
    if gap is None:
        return ""
    ahead = (watermark - clock(record)) / 1e6
    return f"{long_shown(ahead)} ahead of the clock" if ahead > _AHEAD else behind_shown(gap / 1e6)


def _rate(stage: Mapping[str, Any], which: str) -> str:
    rate = stage.get(which)
    return f"\n{rate:,.{0 if rate >= 10 else 1}f}/s" if rate else ""


def cause_lines(record: Record) -> Iterator[str]:
    """Yield what watermarks wait for, what would release each, and the other stages that wait for the same.

    Args:
        record: a status; it may have only `causes`.
    """
    before, causes = causes_of(record)
    if not causes:
        unknown = "unknown: the first micro-batch has not been committed yet"
        is_known = "micro_batch" not in record or has_begun(record)
        yield before or ("no watermark waits for anything" if is_known else unknown)
        return
    if before:
        yield before
    yield "what watermarks wait for"
    for cause in causes:
        yield f"  - {cause['text']}"
        yield f"    released when: {cause['released_when']}"
        others = [stage for stage in cause["stages"] if stage != cause["stage"]]
        if others:
            yield f"    also waiting: {', '.join(others)}"
        if not cause.get("decides", True):
            yield "    no other stage waits for it: the stage sets its own output watermarks (WithWatermark)"
