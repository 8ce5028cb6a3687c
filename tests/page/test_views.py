"""Figures of a job: the input rate beside the rate, and the time to catch up."""

from __future__ import annotations

from typing import Any

import pytest

from arcbeam.model.commits import CommitMode
from arcbeam.page.markup import clock
from arcbeam.page.views import Cell, figures, stage_rows
from tests.page import samples

pytestmark = pytest.mark.contract("PAGE-01")


def shown(growth: float | None, **changes: Any) -> dict[str, Cell]:
    status = samples.status(2, samples.now(), backlog=600.0, rate=100.0, **changes)
    return dict(figures(status, growth))


@pytest.mark.parametrize(
    ("growth", "arrives", "catches_up"),
    [
        (-20.0, "80 elements/s", "30 s"),
        (-100.0, "0 elements/s", "6 s"),
        # It counts something else, as seconds of event time.
        (-500.0, "–", "1 s"),
        (0.0, "100 elements/s", "–"),
        (20.0, "120 elements/s", "–"),
        # A backlog that is as large as before, but for a part of an element.
        (-0.001, "100 elements/s", "–"),
        (None, "–", "–"),
    ],
)
def test_input_rate_and_time_to_catch_up(growth: float | None, arrives: str, catches_up: str) -> None:
    found = shown(growth)
    assert (found["input rate"].text, found["rate"].text, found["catches up in"].text) == (
        arrives,
        "100 elements/s",
        catches_up,
    )


def test_reasons_say_why_nothing_is_known() -> None:
    assert shown(1.0)["catches up in"].hint == "the backlog does not fall"
    assert "some seconds after" in shown(None)["input rate"].hint
    ended = shown(-20.0, mode=CommitMode.DONE)
    assert ended["input rate"] == ended["catches up in"] == Cell("–", "the job has ended")
    empty = dict(figures(samples.status(2, samples.now(), backlog=0.0), None))
    assert empty["catches up in"].text == "0 s"


def test_micro_batch_has_its_duration_and_the_parts_of_it() -> None:
    parts = "plan 0.01 s, Spark 0.20 s, transforms 0.28 s, previous commit 0.02 s"
    assert shown(None)["micro-batch"] == Cell("41 took 0.51 s", parts)
    assert shown(None, seconds={})["micro-batch"] == Cell("41", "its duration was not stored")


def test_stage_without_restrictions_has_no_backlog() -> None:
    status = samples.with_stage(samples.status(2, samples.now()), 1, restrictions=2, backlog=17.0)
    none, some = stage_rows(status)
    assert none.backlog == Cell("0", "0 restriction(s) not done")
    assert some.backlog == Cell("17", "2 restriction(s) not done")


def test_clock_is_shown_to_the_second() -> None:
    at = "2026-01-05 10:00:03Z"
    assert clock(samples.NOW + 345_678) == f'<time data-clock="{samples.NOW + 345_678}" title="{at}">{at}</time>'
