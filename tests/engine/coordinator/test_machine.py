"""What a job's machine asks for while it runs, and at each outcome of a micro-batch: scripts (see `script`)."""

from __future__ import annotations

import pytest

from tests.engine.coordinator.script import Driver, play


@pytest.mark.contract("ENG-07")
def test_an_idle_job_waits_until_something_is_due_and_runs_no_micro_batch() -> None:
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
def test_a_resumed_job_takes_up_what_was_due_whatever_its_shards_have() -> None:
    play("""
        start                       -> run 1.0
        reports due 50              -> propose 1 running
        committed                   -> wait 50
    """)


@pytest.mark.contract("STORE-05")
def test_a_source_that_joins_begins_in_the_first_micro_batch_that_becomes_real_and_in_no_other() -> None:
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
    assert driver.proposed.unbegun == {"rates"}, "who resumes it begins it"


def test_a_micro_batch_that_fails_is_run_again_from_the_head_a_few_times() -> None:
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
def test_micro_batch_whose_workers_die_is_given_up_soon() -> None:
    driver = play("""
        start fresh                 -> run 1.0 initial
        worker dies                 -> warn; wait 5
        clock 5                     -> run 1.1 initial
        worker dies                 -> tear down sum rates read; wait 105
        torn down                   -> failed
    """)
    assert driver.end is not None
    assert driver.end.why == "try 2 of 2: a worker died"


def test_deaths_and_failures_of_a_micro_batch_are_counted_apart() -> None:
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


def test_deaths_are_forgotten_once_the_micro_batch_has_reported() -> None:
    play("""
        start fresh                 -> run 1.0 initial
        worker dies                 -> warn; wait 5
        clock 5                     -> run 1.1 initial
        reports more                -> propose 1 running
        committed                   -> run 2.0
        worker dies                 -> warn; wait 10
    """)


def test_what_the_driver_cannot_do_at_all_fails_the_job() -> None:
    driver = play("""
        start                       -> run 1.0
        reports more                -> propose 1 running
        driver fails                -> tear down sum rates read; wait 100
        torn down                   -> failed
    """)
    assert driver.end is not None
    assert driver.end.why == "a watermark falls"


@pytest.mark.contract("ENG-06")
def test_work_that_can_never_become_ready_fails_the_job_with_what_each_stage_waits_for() -> None:
    driver = play("""
        start                       -> run 1.0
        reports held                -> propose 1 running
        committed                   -> tear down sum rates read; wait 100
        torn down                   -> failed
    """)
    assert driver.end is not None
    assert driver.end.why == (
        "nothing is left that could go on, but something waits:\n"
        "  - 'sum': input of 'sum' is at the end of time: output 'main' of 'read': complete\n"
        "    output 'main' of 'sum' is at 1970-01-01T00:00:00.000005Z: held by state 'pane' of key 'EWR' in shard 0\n"
        "    what is first in event time has its turn behind 1970-01-01T00:00:00.000009Z"
    )
    driver = play("""
        start                       -> run 1.0
        reports never due           -> propose 1 running
        committed                   -> tear down sum rates read; wait 100
        torn down                   -> failed
    """)
    assert driver.end is not None
    assert "'read': input of 'read' is at 1970-01-01T00:00:00.000005Z: held by residual" in driver.end.why
    assert "1 restriction(s) of size 8 are not done\n    what is first by the clock is due never" in driver.end.why


@pytest.mark.contract("ENG-06")
def test_parked_elements_whose_side_input_is_complete_are_work() -> None:
    play("""
        start                       -> run 1.0
        reports parked              -> propose 1 running
        committed                   -> run 2.0
    """)


@pytest.mark.contract("ENG-06")
def test_micro_batches_that_get_nowhere_are_slowed_down_and_told_but_end_no_job() -> None:
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
    assert driver.warnings[0].startswith("2 micro-batches in a row got nowhere")
    assert "1 shard(s) did not come to the end of what was due" in driver.warnings[0]


def test_a_poll_that_finds_nothing_is_no_livelock() -> None:
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


def test_answers_to_what_was_never_asked_are_errors() -> None:
    driver = Driver()
    driver.say("start")
    with pytest.raises(ValueError, match="micro-batch 0 was decided, which was not proposed"):
        driver.say("committed")
    with pytest.raises(ValueError, match="started already"):
        driver.say("start")
    assert [type(event).__name__ for event, _ in driver.machine.story()] == ["JobStarted"]
