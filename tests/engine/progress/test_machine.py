"""What a job's machine asks for, in each mode and at each outcome: scripts (see `script`)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from arcbeam.engine.progress import EndState, JobMachine, Mode, Phase, Propose
from arcbeam.model.commits import CommitMode
from tests.engine.progress.script import LAYOUT, Driver, play


@pytest.mark.contract("ENG-06", "END-01")
def test_a_finite_source_ends_in_a_last_step_that_prepares_a_commit_publishing_shutdown_and_teardown() -> None:
    driver = play("""
        start fresh                            -> run 1.0 initial
        reports more with sink                 -> propose 1 running
        committed                              -> publish 1; run 2.0
        reports nothing left with sink         -> -
        published                              -> propose 2 running
        committed                              -> publish 2; run 3.0 prepare
        published                              -> -
        reports nothing left with sink callbacks -> propose 3 done
        committed                              -> publish 3; finalize 3; wait 100
        finalized                              -> wait
        published                              -> shut down sum rates read; wait 100
        shut down                              -> tear down sum rates read
        torn down                              -> done
        clock 500                              -> -
    """)
    assert driver.end is not None
    assert driver.end.why == ""


def test_what_is_published_again_after_a_crash_is_published_before_the_next_commit() -> None:
    play("""
        start unpublished           -> publish 0 of the head; run 1.0
        reports more                -> -
        publish fails               -> warn; wait 10
        clock 10                    -> publish 0 of the head
        published                   -> propose 1 running
        committed                   -> run 2.0
    """)


@pytest.mark.contract("ENG-07")
def test_an_idle_job_waits_until_something_is_due_and_runs_no_step() -> None:
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


@pytest.mark.contract("END-02")
def test_a_drain_truncates_runs_until_nothing_is_left_and_only_then_prepares_publishes_and_shuts_down() -> None:
    play("""
        start fresh                 -> run 1.0 initial
        reports due 50              -> propose 1 running
        committed                   -> wait 50
        drain last                  -> run 2.0 drain; wait
        reports due 70              -> propose 2 draining
        committed                   -> wait 70
        clock 70                    -> run 3.0 drain
        reports nothing left        -> propose 3 draining
        committed                   -> run 4.0 drain prepare
        reports nothing left with sink -> propose 4 drained as last
        committed                   -> publish 4
        suspend other               -> warn
        published                   -> shut down sum rates read; wait 170
        shut down                   -> tear down sum rates read
        torn down                   -> drained
    """)


@pytest.mark.contract("END-02")
def test_a_drain_while_a_step_runs_or_fails_begins_with_the_next_run() -> None:
    driver = play("""
        start fresh                 -> run 1.0 initial
        drain last                  -> -
        fails                       -> warn; wait 10
        clock 10                    -> run 1.1 initial drain
        late 1.0                    -> -
        reports nothing left        -> propose 1 draining
        committed                   -> run 2.0 drain prepare
    """)
    assert [command.drains_to for command in driver.commands if isinstance(command, Propose)] == ["last"]


def test_a_drain_goes_on_in_the_next_driver_which_is_told_its_savepoint() -> None:
    driver = Driver()
    driver.say("start draining")
    play(
        """
        reports nothing left        -> propose 1 draining
        suspend other               -> warn
        committed                   -> run 2.0 drain prepare
        reports nothing left        -> propose 2 drained
    """,
        driver,
    )
    assert "draining already" in driver.warnings[0]


@pytest.mark.contract("END-03")
def test_a_suspension_commits_what_runs_and_nothing_else_is_run_forced_or_called() -> None:
    play("""
        start fresh                 -> run 1.0 initial
        suspend here                -> -
        reports more with sink      -> propose 1 suspended as here
        committed                   -> publish 1
        published                   -> tear down sum rates read; wait 100
        torn down                   -> stopped
    """)


@pytest.mark.contract("END-03")
def test_a_suspension_of_an_idle_job_or_of_a_failing_step_commits_what_is_real_under_a_name() -> None:
    play("""
        start fresh                 -> run 1.0 initial
        reports due 50              -> propose 1 running
        committed                   -> wait 50
        suspend here                -> propose 2 suspended bare as here; wait
        committed                   -> tear down sum rates read; wait 100
        torn down                   -> stopped
    """)
    play("""
        start fresh                 -> run 1.0 initial
        reports more with sink      -> propose 1 running
        suspend here                -> -
        committed                   -> publish 1
        published                   -> propose 2 suspended bare as here
    """)
    play("""
        start fresh                 -> run 1.0 initial
        suspend here                -> -
        fails                       -> warn; propose 1 suspended bare as here
        committed                   -> tear down sum rates read; wait 100
    """)
    driver = Driver()
    for line in ("suspend here", "start fresh"):
        driver.say(line)
    assert driver.proposed is not None
    assert driver.proposed.fresh


@pytest.mark.contract("END-03")
def test_a_resumed_job_takes_up_what_was_due_whatever_its_shards_have() -> None:
    play("""
        start                       -> run 1.0
        reports due 50              -> propose 1 running
        committed                   -> wait 50
    """)


def test_a_job_that_is_done_before_it_can_be_suspended_is_done() -> None:
    play("""
        start                       -> run 1.0
        reports nothing left        -> propose 1 running
        committed                   -> run 2.0 prepare
        suspend here                -> -
        reports nothing left        -> propose 2 done as here
        committed                   -> shut down sum rates read; wait 100
    """)


@pytest.mark.contract("END-04")
def test_user_code_that_raises_ends_the_job_with_teardown_only_and_nothing_is_published() -> None:
    driver = play("""
        start fresh                 -> run 1.0 initial
        reports more with sink      -> propose 1 running
        committed                   -> publish 1; run 2.0
        breaks                      -> tear down sum rates read; wait 100
        published                   -> -
        drain last                  -> warn
        torn down                   -> failed
    """)
    assert driver.end is not None
    assert driver.end.why.startswith("user code raised; what step 1 has for sinks may be unpublished")


@pytest.mark.contract("END-04")
@pytest.mark.parametrize(
    ("before", "abandoned"),
    [
        ([], ""),
        (["start"], "abandon 1.0; "),
        (["start", "reports more with sink"], ""),
        (["start", "reports more with sink", "committed"], "abandon 2.0; "),
        (["start", "reports due 50 with sink", "committed", "published"], ""),
        (["start", "fails"], ""),
    ],
)
def test_cancelling_tears_down_at_once_whatever_is_in_flight(before: list[str], abandoned: str) -> None:
    driver = Driver()
    for line in before:
        driver.say(line)
    play(f"cancel -> {abandoned}tear down sum rates read; wait 100\ntorn down -> cancelled", driver)
    assert driver.machine.phase is Phase.ENDED


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
    assert driver.machine.head.step == 1


def test_a_step_that_fails_is_run_again_from_the_head_a_few_times() -> None:
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


@pytest.mark.contract("STORE-03")
def test_a_conflict_ends_the_job_and_a_refusal_is_tried_again() -> None:
    driver = play("""
        start                       -> run 1.0
        reports more                -> propose 1 running
        refused                     -> warn; wait 10
        clock 10                    -> propose 1 running
        committed                   -> run 2.0
        reports more                -> propose 2 running
        conflict                    -> tear down sum rates read; wait 110
        torn down                   -> failed
    """)
    assert driver.end is not None
    assert driver.end.why == "another driver took the job over: host7"


def test_what_the_driver_cannot_do_at_all_fails_the_job() -> None:
    driver = play("""
        start                       -> run 1.0
        reports more                -> propose 1 running
        driver fails                -> tear down sum rates read; wait 100
        torn down                   -> failed
    """)
    assert driver.end is not None
    assert driver.end.why == "a watermark falls"


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
        cancel                      -> tear down sum rates read; wait 210
        unknown                     -> -
    """)


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
def test_steps_that_get_nowhere_are_slowed_down_and_told_but_end_no_job() -> None:
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
    assert driver.warnings[0].startswith("2 steps in a row got nowhere")
    assert "1 shard(s) did not come to the end of what was due" in driver.warnings[0]


def test_a_poll_that_finds_nothing_is_no_livelock() -> None:
    driver = Driver()
    driver.say("start")
    for step in range(1, 10):
        play(
            f"""
            reports due {step * 10}     -> propose {step} running
            committed                   -> wait {step * 10}
            clock {step * 10}           -> run {step + 1}.0
        """,
            driver,
        )
    assert not driver.warnings


@pytest.mark.contract("END-01")
def test_a_driver_that_died_behind_the_last_commit_leaves_publishing_and_the_last_calls_to_the_next() -> None:
    driver = Driver()
    started = replace(driver.event("start unpublished"), ended=CommitMode.DRAINED)
    assert driver.send(started) == "publish 0 of the head"
    play("drain last -> warn\npublished -> shut down sum rates read; wait 100", driver)
    play("shut down -> tear down sum rates read\ntorn down -> drained", driver)


def test_a_preparation_that_always_makes_new_work_is_given_up() -> None:
    play("""
        start                       -> run 1.0
        reports nothing left        -> propose 1 running
        committed                   -> run 2.0 prepare
        reports new work            -> propose 2 running
        committed                   -> run 3.0
        reports nothing left        -> propose 3 running
        committed                   -> run 4.0 prepare
        reports new work            -> propose 4 running
        committed                   -> run 5.0
        reports nothing left        -> propose 5 running
        committed                   -> tear down sum rates read; wait 100
    """)


def test_publishing_is_tried_again_and_given_up_with_the_step_that_stands() -> None:
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
        "step 1 is committed, but not published: not reached (failure 3 in a row); "
        "what step 1 has for sinks may be unpublished; resuming publishes it"
    )


@pytest.mark.contract("END-05")
def test_the_last_calls_of_user_code_have_deadlines() -> None:
    driver = play("""
        start                       -> run 1.0
        reports nothing left        -> propose 1 running
        committed                   -> run 2.0 prepare
        reports nothing left with callbacks -> propose 2 done
        committed                   -> finalize 2; wait 100
        clock 100                   -> warn; shut down sum rates read; wait 200
        cancel                      -> -
        clock 200                   -> warn; tear down sum rates read; wait 300
        shut down                   -> -
        clock 300                   -> warn; done
    """)
    assert driver.machine.mode is Mode.RUNNING


def test_answers_to_what_was_never_asked_are_errors() -> None:
    driver = Driver()
    driver.say("start")
    with pytest.raises(ValueError, match="step 0 was decided, which was not proposed"):
        driver.say("committed")
    with pytest.raises(ValueError, match="started already"):
        driver.say("start")
    assert [type(event).__name__ for event, _ in driver.machine.story()] == ["JobStarted"]


def test_after_the_end_nothing_happens() -> None:
    driver = Driver()
    for line in ("cancel", "torn down"):
        driver.say(line)
    assert driver.end is not None
    assert driver.end.state is EndState.CANCELLED
    assert driver.say("start") == "-"
    assert JobMachine(LAYOUT).waiting().stages == ()
