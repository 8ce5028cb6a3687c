"""`arcbeam status`: the progress of a streaming job, what each watermark waits for, and what would release it.

Owns the output. `arcbeam.streaming.status.status` makes the status; a job server sends its record.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from arcbeam.cli.control import is_folder, opened
from arcbeam.cli.history import show_history
from arcbeam.cli.server import ENDPOINT, TLS_CA, TOKEN_FILE, client_of
from arcbeam.console.commandlines import command_line
from arcbeam.console.output import CommandOutput, TextOutput
from arcbeam.engine.protocol.reports import NO_COUNTS
from arcbeam.engine.state.statemetrics import NO_STATE
from arcbeam.errors import SetupError
from arcbeam.model.texts import visible
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, behind_shown, long_shown
from arcbeam.store.log.jobname import job_label
from arcbeam.streaming.status.headline import causes_of, error_of, headline, stopped
from arcbeam.streaming.status.records import status_from
from arcbeam.streaming.status.status import OutputStatus, StageStatus, Status, as_record
from arcbeam.streaming.status.words import (
    COUNTERS,
    LONG_OVERDUE,
    backlog_shown,
    bytes_shown,
    clock,
    drain_line,
    driver_line,
    gap_of,
    overdue,
    parts_in_words,
    recorded,
    shown,
    silent,
    state_of,
    without_driver,
)

if TYPE_CHECKING:
    from rich.table import Table

_COLUMNS = {
    "stage": 0,
    "input at": 0,
    "since": 160,
    "output at": 0,
    "event times": 160,
    "in": 80,
    "out": 80,
    **dict.fromkeys(COUNTERS, 0),
    "keeps": 120,
    "waits": 120,
}
"""The columns of the table, each with the width that a terminal needs to show it."""

_AHEAD_SECONDS_MAX = 60.0
"""Seconds: a watermark that is farther ahead of the clock shows that a clock or an event time is wrong."""

_TABLE_WIDTH = 200
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
    out: CommandOutput,
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
        from arcbeam.streaming.status.folder import status_in

        _show(out, lambda: status_in(opened(job)), watch, every)
        return
    try:
        with client_of(endpoint, token_file, tls_ca) as client:
            _show(out, lambda: status_from(client.status(job)), watch, every)
    except SetupError as e:
        raise SetupError(f"{job!r} is not a folder, so it must be the id of a job: {e.message}", e.remedy) from e


def _show(out: CommandOutput, look: Callable[[], Status], watch: bool, every: float) -> None:
    from rich.console import Console, Group

    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else _TABLE_WIDTH, highlight=False)

    def show(status: Status, width: int = _TABLE_WIDTH) -> None:
        if not isinstance(out, TextOutput):
            more = {"overdue": overdue(status), "silent": silent(status), "headline": headline(status).as_record()}
            out.record({**as_record(status), **more})
            return
        # Without wrapping, however long: users copy and search these lines.
        for line in (*_job_lines(status), ""):
            out.text(line)
        console.print(_table(status, width))
        for line in ("", *cause_lines(status)):
            out.text(line)

    if not watch or not console.is_terminal or not isinstance(out, TextOutput):
        while True:
            status = look()
            show(status)
            if not watch or status.is_over:
                return
            sys.stdout.flush()
            time.sleep(every)
    from rich.live import Live
    from rich.text import Text

    status = look()
    try:
        with Live(console=console, auto_refresh=False, screen=True) as live:
            while not status.is_over:
                # The causes before the table, which may be longer than the screen.
                lines = "\n".join((*_job_lines(status), "", *cause_lines(status), ""))
                live.update(Group(Text(visible(lines)), _table(status, console.width)), refresh=True)
                time.sleep(every)
                status = look()
    finally:
        # The end of the alternate screen removed its content.
        show(status, console.width)


def _table(status: Status, width: int = _TABLE_WIDTH) -> Table:
    """Return a table of a job's stages with the columns that fit into a width."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    columns = [column for column, wanted in _COLUMNS.items() if width >= wanted]
    for column in columns:
        table.add_column(column, overflow="fold", justify="right" if column in COUNTERS else "left")
    for stage in status.stages:
        cells = dict(zip(_COLUMNS, _cells(status, stage), strict=True))
        table.add_row(*(Text(visible(cells[column])) for column in columns))
    return table


def _job_lines(status: Status) -> Iterator[str]:
    """Yield lines about a job; the first one is its condition."""
    is_stopped, condition = stopped(status) is not None, headline(status)
    yield condition.line
    mode = state_of(status)
    lag = _gap(status, status.watermark)
    if status.name or status.folder:
        yield job_label(status.name, status.folder)
    last = f"last micro-batch: {status.micro_batch}, {recorded(status, shown)}"
    yield (
        f"job: {mode}; {last if status.has_begun else 'no micro-batch has been committed yet'}; "
        f"watermark {_watermark(status.watermark)}{lag and f', {lag}'}"
    )
    if why := error_of(status):
        yield why
    if not is_stopped and (driver := driver_line(status)):
        yield driver
    elif not is_stopped and time.time() - status.committed / 1e6 > LONG_OVERDUE:
        before = "" if status.due is None or status.scripted else f" before {shown(status.due)}"
        yield (
            f"nothing is due{before}; to check whether a driver is running this job, request a savepoint, which only a "
            "driver takes" + (f": {command_line('savepoint', status.folder)}" if status.folder else "")
        )
    if not is_stopped and (drains := drain_line(status)) and drains != condition.text:
        yield drains
    if status.seconds:
        yield f"the micro-batch took {status.seconds['seconds']:.2f} s: {parts_in_words(status)}"
    unknown = "–" if without_driver(status) else "unknown"
    rate = unknown if status.rate is None else f"{status.rate:,.0f} elements/s"
    state = sum(status.state_bytes.values()), sum(status.state_entries.values())
    yield (
        f"rate {rate}; backlog: {status.restrictions} restriction(s) of size {backlog_shown(status.backlog)}; "
        f"state: {bytes_shown(state[0])}, {state[1]:,} rows"
    )


def _cells(status: Status, stage: StageStatus) -> Sequence[str]:
    """Return the cells of a stage's row. Times on the day of the micro-batch omit the date."""
    now = status.time
    outputs, many = stage.outputs, len(stage.outputs) > 1

    def of_each(cell: Callable[[OutputStatus], str]) -> str:
        return "\n".join((f"{out.output}: " if many else "") + cell(out) for out in outputs) or "-"

    def at(time: int) -> str:
        return shown(time).removeprefix(shown(now)[:11])

    def times(out: OutputStatus) -> str:
        return " / ".join(at(time) for time in (out.least, out.mean, out.most) if time is not None) or "-"

    read, total = (stage.micro_batch or NO_COUNTS).read, stage.total or NO_COUNTS
    kept, since, lag = stage.kept or NO_STATE, stage.input_since, _gap(status, stage.input)
    # Elements last: the size is theirs.
    found = {
        "timer(s) for the watermark": kept.event_timers,
        "timer(s) for the clock": kept.clock_timers,
        "blocked element(s)": kept.blocked,
        "element(s) queued by key": kept.ordered,
    }
    waits = [f"{number:,} {name}" for name, number in found.items() if number]
    if kept.waiting_bytes:
        waits[-1] += f" ({bytes_shown(kept.waiting_bytes)})"
    if stage.restrictions:
        waits.append(f"{stage.restrictions} restriction(s) of size {backlog_shown(stage.backlog)}")
    waits += [f"blocked until {each}" for each in stage.blocked]
    waits += [f"until {at(stage.next_event)}"] if stage.next_event is not None else []
    waits += [f"until {at(stage.next_due)} of processing time"] if stage.next_due is not None else []
    return (
        stage.stage,
        at(stage.input) + (lag and f"\n{lag}"),
        "-" if since is None else str(since.micro_batch),
        of_each(lambda out: at(out.watermark)),
        of_each(times),
        f"{read:,} ({bytes_shown(stage.bytes_in)}){_rate(stage.read_rate)}",
        of_each(lambda out: f"{out.elements:,} ({bytes_shown(out.bytes)})") + _rate(stage.written_rate),
        *(f"{getattr(total, name):,}" for name in COUNTERS),
        (f"{kept.keys:,} keys\n" if kept.keys else "")
        + f"{stage.state_rows:,} rows ({bytes_shown(stage.state_bytes)})",
        "\n".join(waits) or "-",
    )


def _watermark(time: int) -> str:
    """Return a watermark within a sentence."""
    return shown(time) if MIN_TIMESTAMP < time < MAX_TIMESTAMP else f"at the {shown(time)} of time"


def _gap(status: Status, watermark: int) -> str:
    """Return the gap of a watermark for people; "" if it is at an end of time."""
    gap = gap_of(status, watermark)
    if gap is None:
        return ""
    ahead = (watermark - clock(status)) / 1e6
    return f"{long_shown(ahead)} ahead of the clock" if ahead > _AHEAD_SECONDS_MAX else behind_shown(gap / 1e6)


def _rate(rate: float | None) -> str:
    return f"\n{rate:,.{0 if rate >= 10 else 1}f}/s" if rate else ""


def cause_lines(status: Status) -> Iterator[str]:
    """Yield what watermarks wait for, what would release each, and the other stages that wait for the same."""
    before, causes = causes_of(status)
    if not causes:
        unknown = "unknown: the first micro-batch has not been committed yet"
        yield before or ("no watermark waits for anything" if status.has_begun else unknown)
        return
    if before:
        yield before
    yield "what watermarks wait for"
    for cause in causes:
        yield f"  - {cause.text}"
        yield f"    released when: {cause.released_when}"
        others = [stage for stage in cause.stages if stage != cause.stage]
        if others:
            yield f"    also waiting: {', '.join(others)}"
        if not cause.decides:
            yield "    no other stage waits for it: the stage sets its own output watermarks (WithWatermark)"
