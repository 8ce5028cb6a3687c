"""Commits, savepoints and publishing: scripts (see `script`)."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from arcbeam.model.commits import CommitMode
from tests.engine.coordinator.script import play
from tests.golden.texts import check_message


def test_republishing_after_crash_precedes_next_commit() -> None:
    play("""
        start unpublished           -> publish 0 of the head; run 1.0
        reports more                -> -
        publish fails               -> warn; wait 10
        clock 10                    -> publish 0 of the head
        published                   -> propose 1 running
        committed                   -> run 2.0
    """)


@pytest.mark.contract("STORE-05")
def test_savepoint_requested_during_commit_is_made_by_next() -> None:
    play("""
        start fresh                 -> run 1.0 initial
        savepoint s1                -> -
        reports due 50 with sink    -> propose 1 running as s1
        savepoint s2                -> -
        unknown                     -> warn; wait 10
        savepoint s3                -> -
        clock 10                    -> resolve 1
        savepoint s1                -> -
        committed                   -> publish 1; wait 50
        savepoint s4                -> -
        published                   -> propose 2 running bare as s2 s3 s4; wait
        savepoint s5                -> -
        refused                     -> warn; wait 20
        clock 20                    -> propose 2 running bare as s2 s3 s4
        committed                   -> propose 3 running bare as s5
        committed                   -> wait 50
    """)


@pytest.mark.contract("STORE-05")
@pytest.mark.parametrize(
    ("script", "warnings"),
    [
        (
            """
            start                       -> run 1.0
            reports nothing left        -> propose 1 done
            savepoint s1                -> -
            suspend s2                  -> -
            drain s3                    -> warn
            committed                   -> warn; warn; shut down read rates sum; wait 100
            """,
            ["'s2'.*'s3'", "savepoint 's1' is not", "savepoint 's2' is not"],
        ),
        (
            """
            start                       -> run 1.0
            suspend s1                  -> -
            reports more                -> propose 1 suspended as s1
            savepoint s2                -> -
            suspend s1                  -> -
            committed                   -> warn; tear down sum rates read; wait 100
            suspend s1                  -> -
            """,
            ["savepoint 's2' is not"],
        ),
        (
            """
            savepoint s1                -> -
            drain s2                    -> -
            drain s2                    -> -
            start                       -> run 1.0 drain
            drain s3                    -> warn
            cancel                      -> abandon 1.0; warn; warn; tear down sum rates read; wait 100
            """,
            ["'s3'", "savepoint 's1' is not.*cancelling", "savepoint 's2' is not"],
        ),
        (
            """
            savepoint s1                -> -
            start                       -> run 1.0
            reports more                -> propose 1 running as s1
            savepoint s2                -> -
            driver fails                -> warn; warn; tear down sum rates read; wait 100
            """,
            ["savepoint 's1' .*only if micro-batch 1 .*failing", "savepoint 's2' is not"],
        ),
        (
            """
            drain s1                    -> -
            start draining              -> warn; run 1.0 drain
            """,
            ["draining.*'s1'"],
        ),
    ],
    ids=["done", "suspended", "cancelled", "failed", "another drain"],
)
def test_savepoint_that_no_commit_will_make_causes_warning(script: str, warnings: list[str]) -> None:
    driver = play(script)
    assert len(driver.warnings) == len(warnings)
    assert all(re.search(*pair) for pair in zip(warnings, driver.warnings, strict=True)), driver.warnings


def test_savepoints_requested_of_ended_job_cause_warnings() -> None:
    driver = play("savepoint s1 -> -\ndrain s2 -> -")
    ended = replace(driver.event("start"), ended=CommitMode.DONE)
    assert driver.send(ended) == "warn; warn; shut down read rates sum; wait 100"


@pytest.mark.contract("END-04")
def test_commit_decided_after_cancel_is_not_published() -> None:
    driver = play("""
        start                       -> run 1.0
        reports more with sink      -> propose 1 running
        cancel                      -> tear down sum rates read; wait 100
        committed                   -> -
        torn down                   -> cancelled
    """)
    assert driver.machine.head is not None
    assert driver.machine.head.micro_batch == 1


@pytest.mark.contract("STORE-03")
def test_overtaken_driver_ends_at_once() -> None:
    driver = play("""
        start                       -> run 1.0
        reports due 50              -> propose 1 running
        committed                   -> wait 50
        overtaken                   -> warn; tear down sum rates read; wait 20
    """)
    driver.say("torn down")
    assert driver.end is not None
    assert driver.end.why == "host7"
    play("""
        start                       -> run 1.0
        overtaken                   -> warn; abandon 1.0; tear down sum rates read; wait 20
    """)
    play("""
        start                       -> run 1.0
        reports more                -> propose 1 running
        overtaken                   -> warn; tear down sum rates read; wait 20
        conflict                    -> -
    """)


def test_conflict_ends_job_and_refusal_is_retried() -> None:
    driver = play("""
        start                       -> run 1.0
        reports more                -> propose 1 running
        refused                     -> warn; wait 10
        clock 10                    -> propose 1 running
        committed                   -> run 2.0
        reports more                -> propose 2 running
        conflict                    -> warn; tear down sum rates read; wait 30
        torn down                   -> failed
    """)
    assert driver.end is not None
    assert driver.end.why == "host7"


@pytest.mark.contract("STORE-03")
def test_unknown_outcome_is_resolved_before_anything_else() -> None:
    play("""
        start                       -> run 1.0
        reports more with sink      -> propose 1 running
        unknown                     -> warn; wait 10
        suspend here                -> -
        clock 10                    -> resolve 1
        unknown                     -> wait 30
        clock 30                    -> resolve 1
        unknown                     -> wait 70
        clock 70                    -> resolve 1
        unknown                     -> wait 110
        clock 110                   -> resolve 1
        committed                   -> publish 1
        published                   -> propose 2 suspended bare as here
        unknown                     -> warn; wait 120
        cancel                      -> warn; tear down sum rates read; wait 210
        unknown                     -> -
    """)


def test_publishing_fails_after_bounded_retries() -> None:
    driver = play("""
        start                       -> run 1.0
        reports due 50 with sink    -> propose 1 running
        committed                   -> publish 1; wait 50
        publish fails               -> warn; wait 10
        clock 10                    -> publish 1; wait 50
        publish fails               -> warn; wait 30
        clock 30                    -> publish 1; wait 50
        publish fails               -> tear down sum rates read; wait 130
        torn down                   -> failed
    """)
    assert driver.end is not None
    check_message("machine-publishing-failed", driver.end.why)
