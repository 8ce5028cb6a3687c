"""Reading the events of a TestStream, from its script or from a service."""

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
from tests.golden import check_message

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
    """A service's reader; it can break after the last event."""

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


def test_script_is_read_from_any_event_to_end() -> None:
    script = Script("Script", {"None": "it"}, EVENTS)
    assert list(read(script)) == [*EVENTS, ScriptOver()]
    assert list(read(script, 2)) == [*EVENTS[2:], ScriptOver()]


def test_service_is_read_from_any_event_to_end() -> None:
    with served(_PROTOS) as script:
        assert list(read(script)) == [*EVENTS, ScriptOver()]
        assert list(read(script, 2)) == [*EVENTS[2:], ScriptOver()]


def test_broken_service_is_named_in_error() -> None:
    with served(_PROTOS, breaks=True) as script:
        events = read(script)
        assert [next(events) for _ in EVENTS] == list(EVENTS)
        with pytest.raises(JobFailedError, match=f"'Script' at '{script.endpoint}'.*: [A-Z]+: "):
            next(events)


def test_missing_service_is_named_in_error() -> None:
    with pytest.raises(JobFailedError, match=r"'Script' at 'localhost:1'.*: UNAVAILABLE: "):
        list(read(Script("Script", {"None": "it"}, (), "localhost:1")))


def test_service_with_too_few_events_is_refused() -> None:
    with served(_PROTOS) as script, pytest.raises(JobFailedError) as caught:
        list(read(script, 4))
    check_message("teststream-service-too-few-events", str(caught.value), ENDPOINT=script.endpoint)


def test_invalid_event_from_service_is_named() -> None:
    protos = [*_PROTOS, _PROTOS[0], type(_PROTOS[0])()]
    with served(protos) as script, pytest.raises(JobFailedError) as caught:
        list(read(script))
    check_message("teststream-service-event-unknown", str(caught.value))
