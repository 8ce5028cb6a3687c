"""The ends of a job: done, drained, suspended, failed or cancelled: scripts (see `script`)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from arcbeam.engine.coordinator import End, EndState, JobMachine, Mode, Phase, Propose
from arcbeam.engine.coordinator.ending import outcome
from arcbeam.model.commits import CommitMode
from tests.engine.coordinator.script import LAYOUT, Driver, play
from tests.golden.texts import check_message


@pytest.mark.contract("ENG-06", "END-01")
def test_finite_job_prepares_commits_publishes_and_shuts_down() -> None:
    driver = play("""
        start fresh                            -> run 1.0 initial
        reports more with sink                 -> propose 1 running
        committed                              -> publish 1; run 2.0
        reports sum unprepared with sink       -> -
        published                              -> propose 2 running
        committed                              -> publish 2; run 3.0 prepare sum; wait 100
        published                              -> -
        reports nothing left with sink callbacks -> propose 3 done; wait
        committed                              -> publish 3; finalize 3; wait 100
        finalized                              -> wait
        published                              -> shut down read rates sum; wait 100
        shut down                              -> tear down sum rates read
        torn down                              -> done
        clock 500                              -> -
    """)
    assert driver.end is not None
    assert driver.end.why == ""


@pytest.mark.contract("ENG-06", "END-01", "END-02")
def test_without_preparing_the_finishing_micro_batch_is_last() -> None:
    play("""
        start fresh                 -> run 1.0 initial
        reports nothing left with sink -> propose 1 done
        committed                   -> publish 1
        published                   -> shut down read rates sum; wait 100
    """)
    play("""
        start fresh                 -> run 1.0 initial
        drain last                  -> -
        reports nothing left        -> propose 1 drained as last
    """)


@pytest.mark.contract("END-02")
def test_drain_truncates_finishes_work_prepares_and_shuts_down() -> None:
    play("""
        start fresh                 -> run 1.0 initial
        reports due 50              -> propose 1 running
        committed                   -> wait 50
        drain last                  -> run 2.0 drain; wait
        reports due 70              -> propose 2 draining
        committed                   -> wait 70
        clock 70                    -> run 3.0 drain
        reports sum unprepared      -> propose 3 draining
        committed                   -> run 4.0 drain prepare sum; wait 170
        reports nothing left with sink -> propose 4 drained as last; wait
        committed                   -> publish 4
        suspend other               -> warn
        published                   -> shut down read rates sum; wait 170
        shut down                   -> tear down sum rates read
        torn down                   -> drained
    """)


@pytest.mark.contract("END-02")
def test_drain_during_micro_batch_begins_with_next_run() -> None:
    driver = play("""
        start fresh                 -> run 1.0 initial
        drain last                  -> -
        fails                       -> warn; wait 10
        clock 10                    -> run 1.1 initial drain
        late 1.0                    -> -
        reports more                -> propose 1 draining
        committed                   -> run 2.0 drain
        reports nothing left        -> propose 2 drained as last
    """)
    assert [command.drains_to for command in driver.commands if isinstance(command, Propose)] == ["last", ""]


def test_drain_continues_in_next_driver_with_its_savepoint() -> None:
    driver = Driver()
    driver.say("start draining")
    play(
        """
        reports more                -> propose 1 draining
        suspend other               -> warn
        committed                   -> run 2.0 drain
        reports nothing left        -> propose 2 drained
    """,
        driver,
    )
    assert "draining already" in driver.warnings[0]


@pytest.mark.contract("END-03")
def test_suspension_only_commits_running_micro_batch() -> None:
    play("""
        start fresh                 -> run 1.0 initial
        suspend here                -> -
        reports more with sink      -> propose 1 suspended as here
        committed                   -> publish 1
        published                   -> tear down sum rates read; wait 100
        torn down                   -> stopped
    """)


@pytest.mark.contract("END-03")
def test_suspension_of_idle_or_failing_job_commits_head() -> None:
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
    play("""
        start fresh                 -> run 1.0 initial
        suspend here                -> -
        dies                        -> propose 1 suspended bare as here
        committed                   -> tear down sum rates read; wait 100
    """)
    play("""
        start fresh                 -> run 1.0 initial
        dies                        -> tear down sum rates read; wait 100
        torn down                   -> failed
    """)


@pytest.mark.contract("END-03", "END-06")
def test_suspension_carries_unpublished_committables() -> None:
    for first, then in (("dies", "publisher dies"), ("publisher dies", "dies")):
        warns = {"dies": "-", "publisher dies": "warn"}
        play(f"""
            start fresh                 -> run 1.0 initial
            reports more with sink      -> propose 1 running
            committed                   -> publish 1; run 2.0
            suspend                     -> -
            {first}                     -> {warns[first]}
            {then}                      -> {warns[then] + "; " if then != "dies" else ""}propose 2 suspended bare owing
            committed                   -> tear down sum rates read; wait 100
            torn down                   -> stopped
        """)
    play("""
        start fresh                 -> run 1.0 initial
        reports more with sink      -> propose 1 running
        committed                   -> publish 1; run 2.0
        reports more with sink      -> -
        suspend here                -> -
        publisher dies              -> warn; propose 2 suspended bare owing as here
    """)
    play("""
        start fresh                 -> run 1.0 initial
        suspend here                -> -
        reports more with sink      -> propose 1 suspended as here
        committed                   -> publish 1
        publisher dies              -> warn; tear down sum rates read; wait 100
        torn down                   -> stopped
    """)
    driver = play("""
        start fresh                 -> run 1.0 initial
        reports more with sink      -> propose 1 running
        committed                   -> publish 1; run 2.0
        publisher dies              -> abandon 2.0; tear down sum rates read; wait 100
        torn down                   -> failed
    """)
    assert driver.end is not None
    assert "micro-batch 1 may be unpublished" in driver.end.why


@pytest.mark.contract("END-03")
def test_suspension_requested_before_start_is_first_commit() -> None:
    driver = Driver()
    for line in ("suspend here", "start fresh"):
        driver.say(line)
    assert driver.proposed is not None
    assert driver.proposed.unbegun == LAYOUT.sources


def test_job_done_before_suspension_is_done() -> None:
    play("""
        start                       -> run 1.0
        suspend here                -> -
        reports nothing left        -> propose 1 done as here
        committed                   -> shut down read rates sum; wait 100
    """)


@pytest.mark.contract("END-04")
def test_exception_ends_job_with_teardown_only() -> None:
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
    check_message("machine-user-code-raised", driver.end.why)


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
def test_cancel_tears_down_at_once(before: list[str], abandoned: str) -> None:
    driver = Driver()
    for line in before:
        driver.say(line)
    play(f"cancel -> {abandoned}tear down sum rates read; wait 100\ntorn down -> cancelled", driver)
    assert driver.machine.phase is Phase.ENDED


@pytest.mark.contract("END-01")
def test_next_driver_publishes_and_shuts_down_after_last_commit() -> None:
    driver = Driver()
    started = replace(driver.event("start unpublished"), ended=CommitMode.DRAINED)
    assert driver.send(started) == "publish 0 of the head"
    play("drain last -> warn\npublished -> shut down read rates sum; wait 100", driver)
    play("shut down -> tear down sum rates read\ntorn down -> drained", driver)


@pytest.mark.contract("END-05")
def test_stages_prepare_once_from_sources_to_sinks() -> None:
    driver = play("""
        start                       -> run 1.0
        reports read and sum unprepared -> propose 1 running
        committed                   -> run 2.0 prepare read; wait 100
        fails                       -> warn; wait 10
        clock 10                    -> run 2.1 prepare read; wait 110
        reports sum unprepared      -> propose 2 running; wait
        committed                   -> run 3.0 prepare sum; wait 110
        clock 110                   -> warn
        clock 111                   -> -
        reports new work            -> propose 3 running
        committed                   -> run 4.0
        reports sum unprepared      -> propose 4 done
    """)
    assert driver.warnings[0] == "try 1 of 3: worker lost"
    assert driver.warnings[1].startswith("micro-batch 3 takes long: user code of 'sum' ")


@pytest.mark.contract("END-05")
def test_last_calls_of_user_code_have_deadlines() -> None:
    driver = play("""
        start                       -> run 1.0
        reports nothing left with callbacks -> propose 1 done
        committed                   -> finalize 1; wait 100
        clock 100                   -> warn; shut down read rates sum; wait 200
        clock 200                   -> warn; tear down sum rates read; wait 300
        shut down                   -> -
        clock 300                   -> warn; done
    """)
    assert driver.machine.mode is Mode.RUNNING


@pytest.mark.contract("END-04", "END-05")
def test_cancel_during_last_calls_only_shortens_deadlines() -> None:
    driver = play("""
        start                       -> run 1.0
        reports nothing left        -> propose 1 done
        committed                   -> shut down read rates sum; wait 100
        clock 30                    -> -
        cancel                      -> warn; tear down sum rates read; wait 50
        shut down                   -> -
        clock 40                    -> -
        cancel                      -> -
        clock 50                    -> warn; done
    """)
    assert driver.warnings[0].startswith("shutting down ")
    assert driver.warnings[0].endswith("cancelled")
    play("""
        start                       -> run 1.0
        suspend here                -> -
        reports more                -> propose 1 suspended as here
        committed                   -> tear down sum rates read; wait 100
        clock 90                    -> -
        cancel                      -> -
        clock 100                   -> warn; stopped
    """)


def test_nothing_happens_after_end() -> None:
    driver = Driver()
    for line in ("cancel", "torn down"):
        driver.say(line)
    assert driver.end is not None
    assert driver.end.state is EndState.CANCELLED
    assert driver.say("start") == "-"
    assert JobMachine(LAYOUT).waiting().stages == ()


@pytest.mark.contract("END-02", "STORE-05")
def test_drain_name_is_only_for_last_micro_batch() -> None:
    driver = play("""
        start                       -> run 1.0
        savepoint s1                -> -
        drain s1                    -> warn
        reports more                -> propose 1 running as s1
        drain s1                    -> warn
        committed                   -> run 2.0
        drain s1                    -> warn
        drain s2                    -> -
        savepoint s2                -> warn
        savepoint s3                -> -
        reports more                -> propose 2 draining as s3
        savepoint s2                -> warn
        committed                   -> run 3.0 drain
        reports more                -> propose 3 draining
        committed                   -> run 4.0 drain
        reports nothing left        -> propose 4 drained as s2
    """)
    assert ["s1" in text for text in driver.warnings] == [True, True, True, False, False]
    assert all("the name 's1'" in text or "will be savepoint 's2'" in text for text in driver.warnings)


@pytest.mark.parametrize("requested", ["last", "rename a last"])
def test_resumed_drain_keeps_its_name(requested: str) -> None:
    driver = play(f"savepoint {requested} -> -")
    driver.send(replace(driver.event("start draining"), savepoint="last"))
    assert len(driver.warnings) == 1
    play(
        """
        reports more                -> propose 1 draining
        committed                   -> run 2.0 drain
        reports nothing left        -> propose 2 drained as last
    """,
        driver,
    )


@pytest.mark.parametrize(
    ("end", "text"),
    [
        (End(EndState.FAILED, "no disk"), "it failed: no disk"),
        (End(EndState.CANCELLED), "it was cancelled"),
        (End(EndState.STOPPED), "it is suspended"),
        (End(EndState.DONE, "not all is published"), "it is done (not all is published)"),
    ],
)
def test_end_is_named_with_its_reason(end: End, text: str) -> None:
    assert outcome(end) == text
