"""A job with a script: the next event happens when nothing is left to do, and nothing else moves its clock."""

from __future__ import annotations

import pytest

from tests.engine.coordinator.script import SCRIPTED, Driver, play

pytestmark = pytest.mark.contract("ENG-09")


def scripted() -> Driver:
    return Driver(layout=SCRIPTED)


def test_each_event_happens_in_a_micro_batch_of_its_own_when_all_before_it_is_done() -> None:
    driver = play(
        """
        start fresh                 -> run 1.0 initial
        reports more                -> propose 1 running
        committed                   -> run 2.0
        reports scripted            -> propose 2 running
        committed                   -> read 0
        clock 1000                  -> -
        says elements               -> run 3.0 with elements
        reports more                -> propose 3 running
        committed                   -> run 4.0
        reports scripted            -> propose 4 running
        committed                   -> read 1
        says watermark 9            -> run 5.0 with watermark
        reports scripted            -> propose 5 running
        committed                   -> read 2
        says end                    -> run 6.0 with end
        reports nothing left        -> propose 6 done
        committed                   -> shut down read rates sum; wait 1100
        """,
        scripted(),
    )
    assert driver.proposed is not None
    assert driver.proposed.script.over
    assert driver.proposed.script.events == 3


def test_the_clock_is_the_scripts_whatever_time_passes() -> None:
    driver = play(
        """
        clock 500                   -> -
        start fresh                 -> run 1.0 initial
        reports due 50              -> propose 1 running
        committed                   -> read 0
        clock 700                   -> -
        says clock 49               -> run 2.0 with clock
        reports due 50              -> propose 2 running
        committed                   -> read 1
        says clock 1                -> run 3.0 with clock
        """,
        scripted(),
    )
    assert driver.plan is not None
    assert driver.plan.time == 50


def test_behind_the_end_the_clock_goes_to_what_is_due() -> None:
    driver = play(
        """
        start fresh                 -> run 1.0 initial
        reports due 50              -> propose 1 running
        committed                   -> read 0
        says end                    -> run 2.0 with end
        reports due 50              -> propose 2 running
        committed                   -> run 3.0
        """,
        scripted(),
    )
    assert driver.plan is not None
    assert driver.plan.time == 50


def test_the_end_is_the_last_micro_batch_if_all_is_complete() -> None:
    play(
        """
        start fresh                 -> run 1.0 initial
        reports nothing left        -> propose 1 running
        committed                   -> read 0
        says end                    -> run 2.0 prepare with end
        reports nothing left        -> propose 2 done
        committed                   -> shut down read rates sum; wait 100
        """,
        scripted(),
    )


def test_nobody_prepares_before_the_script_is_over() -> None:
    play(
        """
        start fresh                 -> run 1.0 initial
        reports sum unprepared      -> propose 1 running
        committed                   -> read 0
        says clock 10               -> run 2.0 with clock
        reports sum unprepared      -> propose 2 running
        committed                   -> read 1
        says end                    -> run 3.0 with end
        reports sum unprepared      -> propose 3 running
        committed                   -> run 4.0 prepare sum; wait 100
        reports nothing left        -> propose 4 done; wait
        """,
        scripted(),
    )


def test_a_micro_batch_that_fails_is_run_again_with_the_same_event_at_the_same_time() -> None:
    driver = play(
        """
        start fresh                 -> run 1.0 initial
        reports scripted            -> propose 1 running
        committed                   -> read 0
        says clock 7                -> run 2.0 with clock
        fails                       -> warn; wait 10
        clock 10                    -> run 2.1 with clock
        """,
        scripted(),
    )
    assert driver.plan is not None
    assert driver.plan.time == 7


def test_a_suspended_job_says_how_far_it_has_come() -> None:
    driver = play(
        """
        start fresh                 -> run 1.0 initial
        reports scripted            -> propose 1 running
        committed                   -> read 0
        says elements               -> run 2.0 with elements
        reports scripted            -> propose 2 running
        committed                   -> read 1
        savepoint s1                -> propose 3 running bare as s1
        committed                   -> -
        suspend s2                  -> propose 4 suspended bare as s2
        says elements               -> -
        """,
        scripted(),
    )
    assert driver.proposed is not None
    assert driver.proposed.script.events == 1
    assert driver.proposed.time == 0


def test_a_drained_job_reads_nothing_more() -> None:
    play(
        """
        start fresh                 -> run 1.0 initial
        reports scripted            -> propose 1 running
        committed                   -> read 0
        drain s1                    -> run 2.0 drain
        says elements               -> -
        reports scripted            -> propose 2 draining
        committed                   -> run 3.0 drain with end
        reports nothing left        -> propose 3 drained as s1
        """,
        scripted(),
    )


def test_an_answer_that_nobody_waits_for_changes_nothing() -> None:
    play(
        """
        start fresh                 -> run 1.0 initial
        says elements               -> -
        reports scripted            -> propose 1 running
        committed                   -> read 0
        says elements               -> run 2.0 with elements
        says end                    -> -
        """,
        scripted(),
    )


def test_a_script_that_cannot_be_read_fails_the_job() -> None:
    play(
        """
        start fresh                 -> run 1.0 initial
        reports scripted            -> propose 1 running
        committed                   -> read 0
        driver fails                -> tear down sum rates read; wait 100
        torn down                   -> failed
        """,
        scripted(),
    )
