"""The failures of a job: tries of micro-batches and attempts of tasks, counted by their error.

Owns which failures are the same. Knows the events of a history only; a driver writes them
(`arcbeam.streaming.driver.historywriter`), in the words of `arcbeam.streaming.status.tries`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from arcbeam.page.views import Cell
from arcbeam.streaming.status.records import Record

_KINDS: Final = ("trouble", "retry")
_FAILURE: Final = re.compile(
    r"(?P<place>(?:micro-batch|attempt) [^:;]* failed[^:;]*)(?:; Spark ran it again)?: "
    r"(?:on host (?P<host>\S+): )?(?P<why>.*)",
    re.DOTALL,
)


class ErrorRow(NamedTuple):
    """Failures with the same error.

    Attributes:
        text: the error.
        times: how often it happened.
        hosts: where; "" if unknown.
        newest: the micro-batch, and the try or the attempt, of the newest one.
        first, last: when, in microseconds since 1970.
    """

    text: str
    times: Cell
    hosts: str
    newest: str
    first: int
    last: int


def errors_of(history: Record) -> Sequence[ErrorRow]:
    """Return the failures in a history, the newest first."""
    found: dict[str, ErrorRow] = {}
    counts: dict[str, int] = {}
    for event in history["events"]:
        if event["kind"] in _KINDS and (match := _FAILURE.fullmatch(event["text"])):
            why, time = match["why"], event["time"]
            before = found.pop(why, None)
            hosts = sorted({*(before.hosts.split(", ") if before else ()), match["host"] or ""} - {""})
            counts[why] = counts.get(why, 0) + 1
            times = Cell(f"{counts[why]:,}", "in the newest 500 events of the job")
            found[why] = ErrorRow(why, times, ", ".join(hosts), match["place"], before.first if before else time, time)
    return list(reversed(found.values()))
