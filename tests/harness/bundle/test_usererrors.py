"""What an exception of user code becomes for the user: the transform, the text, the user's frames, and a remedy."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from arcbeam.errors import CoderError, InvalidPipelineError, UserCodeError
from arcbeam.harness.bundle import usererrors
from tests.golden import check_message


def _raised(function: Any) -> BaseException:
    try:
        function()
    except BaseException as e:
        return e
    raise AssertionError("nothing was raised")


def _exit() -> None:
    raise SystemExit(3)


def _no_memory() -> None:
    raise MemoryError


def test_user_errors_are_distinguished() -> None:
    assert isinstance(usererrors.described(_raised(_exit), "A"), UserCodeError)
    assert usererrors.described(_raised(_no_memory), "A") is None
    ours = InvalidPipelineError("x")
    assert usererrors.described(ours, "A") is ours


@pytest.mark.parametrize(
    "text",
    [
        "Can't pickle <class '__main__.Point'>: attribute lookup Point on __main__ failed",
        "Can't pickle <class '__main__.Point'>: it's not the same object as __main__.Point",
        "Can't get attribute 'Point' on <module 'arcbeam.spark.daemon' from '/x.py'>",
        "Can't get attribute 'Point' on <module 'pyspark.daemon' from '/x.py'>",
    ],
)
def test_class_not_found_by_name_has_remedy(text: str) -> None:
    reported = usererrors.described(pickle.PicklingError(text), "A")
    assert isinstance(reported, UserCodeError)
    assert "'Point' at the top level" in reported.error


def test_notes_of_an_exception_are_kept() -> None:
    error = _raised(lambda: 1 // 0)
    error.add_note("while dividing apples")
    reported = usererrors.described(error, "A")
    assert isinstance(reported, UserCodeError)
    assert "while dividing apples" in reported.error
    assert str(reported).count("apples") == 1


def test_frames_of_a_wrapped_exception_are_its_own() -> None:
    alone = CoderError("Write", "cannot encode", "frames of the worker")
    caused = CoderError("Write", "cannot encode", "frames of the worker")
    caused.__cause__ = _raised(lambda: 1 // 0)
    for error, frames in ((alone, "frames of the worker"), (caused, "lambda: 1 // 0")):
        reported = usererrors.described(error, "Other")
        assert isinstance(reported, CoderError)
        assert (reported.step, reported.error) == ("Write", "cannot encode")
        assert frames in reported.traceback
        assert reported.traceback.count("frames of the worker") == (error is alone)


@pytest.mark.contract("API-06")
@pytest.mark.parametrize("seconds", [10**15, -(10**15), 1e15, 2**70])
def test_event_time_out_of_range_has_remedy(seconds: float) -> None:
    def out() -> None:
        WindowedValue(1, Timestamp.of(seconds), (GlobalWindow(),))

    reported = usererrors.described(_raised(out), "Stamp")
    assert isinstance(reported, UserCodeError)
    assert reported.step == "Stamp"
    check_message("event-time-out-of-range", reported.error)


def test_other_overflow_has_no_advice_on_time() -> None:
    reported = usererrors.described(_raised(lambda: (2.0**1000) ** 2), "Power")
    assert "event time" not in str(reported)
