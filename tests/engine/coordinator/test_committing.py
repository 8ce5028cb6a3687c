"""What is committed, under which name, and what is published: scripts (see `script`)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from arcbeam.model.commits import CommitMode
from tests.engine.coordinator.script import play


def test_what_is_published_again_after_a_crash_is_published_before_the_next_commit() -> None:
    play("""
        start unpublished           -> publish 0 of the head; run 1.0
        reports more                -> -
        publish fails               -> warn; wait 10
        clock 10                    -> publish 0 of the head
        published                   -> propose 1 running
        committed                   -> run 2.0
    """)


@pytest.mark.contract("STORE-05")
def test_a_savepoint_that_is_asked_for_while_a_commit_is_on_its_way_is_made_by_the_next_one() -> None:
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
    ("script", "told"),
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
            ["already, to savepoint 's2': nothing comes of 's3'", "savepoint 's1' is not", "savepoint 's2' is not"],
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
            ["savepoint 's2' is not made: asked for when the last commit"],
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
            ["nothing comes of 's3'", "savepoint 's1' is not made: the job is cancelling", "savepoint 's2' is not"],
        ),
        (
            """
            savepoint s1                -> -
            start                       -> run 1.0
            reports more                -> propose 1 running as s1
            savepoint s2                -> -
            driver fails                -> warn; warn; tear down sum rates read; wait 100
            """,
            ["savepoint 's1' is there only if micro-batch 1 is committed: the job is failing", "savepoint 's2' is not"],
        ),
        (
            """
            drain s1                    -> -
            start draining              -> warn; run 1.0 drain
            """,
            ["draining already, to savepoint '': nothing comes of 's1'"],
        ),
    ],
    ids=["done", "suspended", "cancelled", "failed", "another drain"],
)
def test_a_savepoint_that_no_commit_makes_any_more_is_told(script: str, told: list[str]) -> None:
    driver = play(script)
    assert len(driver.warnings) == len(told)
    assert all(text in warning for text, warning in zip(told, driver.warnings, strict=True)), driver.warnings


def test_savepoints_that_are_asked_for_before_a_job_that_has_ended_is_finished_are_told() -> None:
    driver = play("savepoint s1 -> -\ndrain s2 -> -")
    ended = replace(driver.event("start"), ended=CommitMode.DONE)
    assert driver.send(ended) == "warn; warn; shut down read rates sum; wait 100"


@pytest.mark.contract("END-04")
def test_a_commit_that_is_decided_after_the_end_was_is_real_but_is_not_published() -> None:
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
def test_who_is_overtaken_ends_at_once_whatever_is_on_its_way() -> None:
    driver = play("""
        start                       -> run 1.0
        reports due 50              -> propose 1 running
        committed                   -> wait 50
        overtaken                   -> tear down sum rates read; wait 20
    """)
    driver.say("torn down")
    assert driver.end is not None
    assert driver.end.why == "host7"
    play("""
        start                       -> run 1.0
        overtaken                   -> abandon 1.0; tear down sum rates read; wait 20
    """)
    play("""
        start                       -> run 1.0
        reports more                -> propose 1 running
        overtaken                   -> tear down sum rates read; wait 20
        conflict                    -> -
    """)


def test_a_conflict_ends_the_job_and_a_refusal_is_tried_again() -> None:
    driver = play("""
        start                       -> run 1.0
        reports more                -> propose 1 running
        refused                     -> warn; wait 10
        clock 10                    -> propose 1 running
        committed                   -> run 2.0
        reports more                -> propose 2 running
        conflict                    -> tear down sum rates read; wait 30
        torn down                   -> failed
    """)
    assert driver.end is not None
    assert driver.end.why == "host7"


@pytest.mark.contract("STORE-03")
def test_an_unknown_outcome_is_asked_about_until_it_is_known_and_nothing_else_is_done() -> None:
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


def test_publishing_is_tried_again_and_given_up_with_the_micro_batch_that_stands() -> None:
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
    assert driver.end.why == (
        "micro-batch 1 is committed, but not published: not reached (failure 3 in a row); "
        "what micro-batch 1 has for sinks may be unpublished; resuming publishes it"
    )
