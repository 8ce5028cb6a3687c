"""The machine's commands while a job runs, and after each outcome of a micro-batch: scripts (see `script`)."""

from __future__ import annotations

import pytest

from tests.engine.coordinator.script import Driver, play
from tests.golden.texts import check_message


@pytest.mark.contract("ENG-07")
def test_idle_job_waits_without_micro_batches() -> None:
    driver = play("""
        start fresh                 -> run 1.0 initial
        reports due 50              -> propose 1 running
        committed                   -> wait 50
        clock 20                    -> -
        clock 49                    -> -
        clock 50                    -> run 2.0
        reports due 70              -> propose 2 running
        clock 60                    -> -
        committed                   -> wait 70
        savepoint s1                -> propose 3 running bare as s1; wait
        committed                   -> wait 70
    """)
    assert driver.plan is not None
    assert driver.plan.time == 50


@pytest.mark.contract("END-03")
def test_resumed_job_runs_a_micro_batch_first() -> None:
    play("""
        start                       -> run 1.0
        reports due 50              -> propose 1 running
        committed                   -> wait 50
    """)


@pytest.mark.contract("STORE-05")
def test_new_source_begins_in_first_committed_micro_batch() -> None:
    driver = play("""
        start with rates            -> run 1.0 beginning rates
        fails                       -> warn; wait 10
        clock 10                    -> run 1.1 beginning rates
        reports more                -> propose 1 running
        committed                   -> run 2.0
    """)
    assert driver.proposed is not None
    assert driver.proposed.unbegun == set()
    driver = play("""
        start with rates            -> run 1.0 beginning rates
        suspend here                -> -
        dies                        -> propose 1 suspended bare as here
    """)
    assert driver.proposed is not None
    assert driver.proposed.unbegun == {"rates"}, "the next driver begins it"


def test_failed_micro_batch_is_retried_a_few_times() -> None:
    driver = play("""
        start fresh                 -> run 1.0 initial
        fails                       -> warn; wait 10
        clock 10                    -> run 1.1 initial
        fails                       -> warn; wait 30
        clock 30                    -> run 1.2 initial
        reports more                -> propose 1 running
        committed                   -> run 2.0
        fails                       -> warn; wait 40
        clock 40                    -> run 2.1
        fails                       -> warn; wait 60
        clock 60                    -> run 2.2
        fails                       -> tear down sum rates read; wait 160
        torn down                   -> failed
    """)
    assert driver.end is not None
    assert driver.end.why == "worker lost (failure 3 in a row)"


@pytest.mark.contract("BAT-06")
def test_micro_batch_whose_workers_die_fails_soon() -> None:
    driver = play("""
        start fresh                 -> run 1.0 initial
        worker dies                 -> warn; wait 5
        clock 5                     -> run 1.1 initial
        worker dies                 -> tear down sum rates read; wait 105
        torn down                   -> failed
    """)
    assert driver.end is not None
    assert driver.end.why == "try 2 of 2: a worker died"


def test_deaths_and_failures_are_counted_separately() -> None:
    driver = play("""
        start fresh                 -> run 1.0 initial
        fails                       -> warn; wait 10
        clock 10                    -> run 1.1 initial
        worker dies                 -> warn; wait 15
        clock 15                    -> run 1.2 initial
        fails                       -> warn; wait 35
        clock 35                    -> run 1.3 initial
        fails                       -> tear down sum rates read; wait 135
        torn down                   -> failed
    """)
    assert driver.end is not None
    assert driver.end.why == "worker lost (failure 3 in a row)"


def test_report_resets_count_of_deaths() -> None:
    play("""
        start fresh                 -> run 1.0 initial
        worker dies                 -> warn; wait 5
        clock 5                     -> run 1.1 initial
        reports more                -> propose 1 running
        committed                   -> run 2.0
        worker dies                 -> warn; wait 10
    """)


def test_command_that_driver_cannot_do_fails_job() -> None:
    driver = play("""
        start                       -> run 1.0
        reports more                -> propose 1 running
        driver fails                -> tear down sum rates read; wait 100
        torn down                   -> failed
    """)
    assert driver.end is not None
    assert driver.end.why == "a watermark falls"


@pytest.mark.contract("ENG-06")
def test_work_that_is_never_due_fails_job() -> None:
    driver = play("""
        start                       -> run 1.0
        reports held                -> propose 1 running
        committed                   -> tear down sum rates read; wait 100
        torn down                   -> failed
    """)
    assert driver.end is not None
    check_message("machine-never-due", driver.end.why)
    driver = play("""
        start                       -> run 1.0
        reports never due           -> propose 1 running
        committed                   -> tear down sum rates read; wait 100
        torn down                   -> failed
    """)
    assert driver.end is not None
    assert "'read': input of 'read' is at 1970-01-01T00:00:00.000005Z, held by restriction" in driver.end.why
    assert "1 restriction(s) of size 8 " in driver.end.why
    assert "is due never" in driver.end.why


@pytest.mark.contract("ENG-06")
def test_blocked_elements_with_complete_side_input_are_work() -> None:
    play("""
        start                       -> run 1.0
        reports blocked             -> propose 1 running
        committed                   -> run 2.0
    """)


@pytest.mark.contract("ENG-06")
def test_stall_causes_pauses_and_warnings_only() -> None:
    driver = play("""
        start                       -> run 1.0
        reports the same            -> propose 1 running
        committed                   -> run 2.0
        reports the same            -> propose 2 running
        committed                   -> wait 5
        clock 5                     -> run 3.0
        reports the same            -> propose 3 running
        committed                   -> warn; wait 15
        clock 15                    -> run 4.0
        reports the same            -> propose 4 running
        committed                   -> wait 35
        clock 35                    -> run 5.0
        reports the same            -> propose 5 running
        committed                   -> warn; wait 55
        clock 55                    -> run 6.0
        reports more                -> propose 6 running
        committed                   -> run 7.0
        reports the same            -> propose 7 running
        committed                   -> wait 60
        drain last                  -> run 8.0 drain; wait
    """)
    check_message("machine-stalled", driver.warnings[0])


def test_poll_without_result_is_no_stall() -> None:
    driver = Driver()
    driver.say("start")
    for micro_batch in range(1, 10):
        play(
            f"""
            reports due {micro_batch * 10}     -> propose {micro_batch} running
            committed                   -> wait {micro_batch * 10}
            clock {micro_batch * 10}           -> run {micro_batch + 1}.0
        """,
            driver,
        )
    assert not driver.warnings


def test_answers_without_command_are_errors() -> None:
    driver = Driver()
    driver.say("start")
    with pytest.raises(ValueError, match="micro-batch 0, which was not proposed"):
        driver.say("committed")
    with pytest.raises(ValueError, match="started already"):
        driver.say("start")
    assert [type(event).__name__ for event, _ in driver.machine.event_log()] == ["JobStarted"]
