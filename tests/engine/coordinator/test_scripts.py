"""A job with a script: the next event happens when no work is left, and only the script moves the clock."""

from __future__ import annotations

import pytest

from tests.engine.coordinator.script import SCRIPTED, Driver, play

pytestmark = pytest.mark.contract("ENG-09")


def scripted() -> Driver:
    return Driver(layout=SCRIPTED)


def test_each_event_has_its_own_micro_batch() -> None:
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


def test_only_script_moves_clock() -> None:
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


def test_after_script_clock_moves_to_next_due_time() -> None:
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


def test_script_end_is_last_micro_batch_if_complete() -> None:
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


def test_stages_prepare_after_script_end() -> None:
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


def test_retry_has_same_event_at_same_time() -> None:
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


def test_suspended_job_records_script_position() -> None:
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


def test_drained_job_reads_no_further_event() -> None:
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


def test_unrequested_script_event_is_ignored() -> None:
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


def test_unreadable_script_fails_job() -> None:
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
