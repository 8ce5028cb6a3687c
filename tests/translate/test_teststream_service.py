"""The events of a TestStream, out of its script or from a service."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from apache_beam.coders import FastPrimitivesCoder
from apache_beam.testing import test_stream
from apache_beam.testing.test_stream_service import TestStreamServiceController as Controller
from apache_beam.transforms.window import TimestampedValue

from arcbeam.errors import JobFailedError
from arcbeam.model.script import AddElements, AdvanceClock, AdvanceWatermark, Script, ScriptEvent, ScriptOver
from arcbeam.model.timestamps import Duration, Timestamp
from arcbeam.translate.teststream import events_of

pytestmark = pytest.mark.contract("ENG-09")

_CODER = FastPrimitivesCoder()
_SCRIPT = test_stream.TestStream().advance_watermark_to(0.001).advance_processing_time(0.002)
_PROTOS = [event.to_runner_api(_CODER) for event in _SCRIPT.add_elements([TimestampedValue("x", 0.003)])._events]
# A service's unit of time is the microsecond.
EVENTS: tuple[ScriptEvent, ...] = (
    AdvanceWatermark("it", Timestamp(1)),
    AdvanceClock(Duration(2)),
    AddElements("it", ((_CODER.encode("x"), Timestamp(3)),)),
)


class _Reader:
    """What a service reads from; it breaks behind so many events."""

    def __init__(self, protos: list[Any], breaks: bool = False) -> None:
        self._protos, self._breaks = protos, breaks

    def read_multiple(self, keys: list[tuple[str, str | None]]) -> Iterator[Any]:
        assert keys == [("full", None)]
        yield from self._protos
        if self._breaks:
            raise ZeroDivisionError


@contextmanager
def served(protos: list[Any], **how: Any) -> Iterator[Script]:
    controller = Controller(reader=_Reader(protos, **how))
    controller.start()
    try:
        yield Script("Script", {"None": "it"}, (), controller.endpoint)
    finally:
        controller.stop()


def read(script: Script, number: int = 0) -> Iterator[ScriptEvent]:
    events = events_of(script, number)
    try:
        while True:
            event = next(events)
            yield event
            if event == ScriptOver():
                return
    finally:
        events.close()


def test_a_script_is_read_from_anywhere_to_its_end() -> None:
    script = Script("Script", {"None": "it"}, EVENTS)
    assert list(read(script)) == [*EVENTS, ScriptOver()]
    assert list(read(script, 2)) == [*EVENTS[2:], ScriptOver()]


def test_so_is_a_service() -> None:
    with served(_PROTOS) as script:
        assert list(read(script)) == [*EVENTS, ScriptOver()]
        assert list(read(script, 2)) == [*EVENTS[2:], ScriptOver()]


def test_a_service_that_breaks_off_is_named_and_its_script_does_not_end() -> None:
    with served(_PROTOS, breaks=True) as script:
        events = read(script)
        assert [next(events) for _ in EVENTS] == list(EVENTS)
        with pytest.raises(JobFailedError, match=f"the service of TestStream 'Script' at '{script.endpoint}' cannot"):
            next(events)


def test_a_service_that_is_not_there_is_named() -> None:
    with pytest.raises(JobFailedError, match="at 'localhost:1' cannot be read: UNAVAILABLE"):
        list(read(Script("Script", {"None": "it"}, (), "localhost:1")))


def test_a_service_that_has_less_than_has_happened_is_named() -> None:
    with served(_PROTOS) as script, pytest.raises(JobFailedError, match=r"has 3 event\(s\), and 4 have happened"):
        list(read(script, 4))


def test_an_event_that_cannot_be_meant_is_named() -> None:
    protos = [*_PROTOS, _PROTOS[0], type(_PROTOS[0])()]
    wrong = "event 5 of TestStream 'Script' is of no known kind"
    with served(protos) as script, pytest.raises(JobFailedError, match=wrong):
        list(read(script))
