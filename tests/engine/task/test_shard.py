"""A whole job, driven by its machine in micro-batches, has the output of a plain computation (see `toy`)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arcbeam.engine.coordinator import CancelRequested, DrainRequested, EndState, SuspendRequested
from arcbeam.engine.protocol.reports import TaskReport
from arcbeam.engine.task.shard import EngineTask
from arcbeam.model.timestamps import MAX_TIMESTAMP
from tests.engine.task.toy import Feed, Toy, expected

_EVENTS = st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.integers(0, 45)), max_size=25)
_FEEDS = st.fixed_dictionaries({"read": st.builds(Feed, _EVENTS), "rates": st.builds(Feed, _EVENTS)})
_SOME = {
    "read": Feed([(b"a", 3), (b"b", 12), (b"a", 7), (b"a", 15), (b"b", 11), (b"c", 2), (b"a", 31), (b"b", 30)]),
    "rates": Feed([(b"", 4), (b"", 33), (b"", 13), (b"", 35)]),
}


def _rows(toy: Toy) -> list[tuple[object, ...]]:
    return sorted(toy.out, key=repr)


@pytest.mark.contract("ENG-02", "ENG-03", "ENG-05", "ENG-06", "STORE-02", "END-01")
@settings(max_examples=60, deadline=None)
@given(
    feeds=_FEEDS,
    seed=st.integers(0, 1000),
    failures=st.sampled_from([0.0, 0.2]),
    looks=st.integers(1, 20),
    doubles=st.sampled_from([0.0, 0.3]),
)
def test_job_outputs_everything_once(
    feeds: dict[str, Feed], seed: int, failures: float, looks: int, doubles: float
) -> None:
    toy = Toy(feeds, seed, failures, looks, doubles)
    end = toy.run()
    assert end.state is EndState.DONE, end.why
    assert _rows(toy) == expected(feeds)
    assert toy.drops == []
    assert toy.calls == ["shutdown", "teardown"]


@pytest.mark.contract("STORE-02")
def test_inconsistent_micro_batch_is_run_again() -> None:
    toy = Toy(_SOME, doubles=0.5)
    assert toy.run().state is EndState.DONE
    assert _rows(toy) == expected(_SOME)
    assert toy.micro_batches > toy.head
    tries, reported = zip(*(text.split(": ", 1) for text in toy.warnings), strict=True)
    assert all(each.startswith("try ") for each in tries)
    assert set(reported) == {
        f"micro-batch {micro_batch} is not consistent: task 1 of level 1 read other attempts of level 0 than reported"
        for micro_batch in range(1, toy.head + 1)
        if f"micro-batch {micro_batch} is" in "".join(toy.warnings)
    }


@pytest.mark.contract("ENG-02")
def test_unblocked_elements_leave_in_micro_batch_reading_them() -> None:
    toy = Toy({"read": Feed([(b"a", 3), (b"a", 99), (b"a", 5)], piece=1), "rates": Feed([(b"", 4)])})
    seen: list[list[str]] = []

    def look(micro_batch: int) -> None:
        seen.append([row[0] for row in toy.out])

    toy.run(look)
    # Joins in the first micro-batch wait for the side input, which that micro-batch's commit provides; the rest
    # does not wait. The window's end waits for the source.
    assert seen[:2] == [[], ["join", "join"]]
    assert "sum" in seen[2]


@pytest.mark.contract("SDF-08")
def test_restrictions_are_shared_by_all_shards() -> None:
    events = [(b"a", time) for time in range(200)]
    toy = Toy({"read": Feed(events, piece=4), "rates": Feed([])}, seed=1)
    assert toy.run().state is EndState.DONE
    assert toy.read_in[0] + toy.read_in[1] == 200
    assert min(toy.read_in.values()) > 60


@pytest.mark.contract("ENG-07", "SDF-04")
def test_no_micro_batch_runs_between_polls() -> None:
    events = [(b"a", time) for time in range(0, 40, 4)]
    toy = Toy({"read": Feed(events, every=1, pause=1_000_000, piece=1), "rates": Feed([])}, looks=100)
    toy.chance.random = lambda: 1.0  # type: ignore[method-assign]  # no splits
    end = toy.run()
    assert end.state is EndState.DONE
    assert toy.micro_batches < 2 * len(events) + 3
    assert toy.now > 1_000_000 * (len(events) - 1)


@pytest.mark.contract("END-02")
@settings(max_examples=20, deadline=None)
@given(feeds=_FEEDS, seed=st.integers(0, 1000), at=st.integers(1, 6), failures=st.sampled_from([0.0, 0.2]))
def test_drain_outputs_all_and_reads_no_more(feeds: dict[str, Feed], seed: int, at: int, failures: float) -> None:
    toy = Toy(feeds, seed, failures)
    end = toy.run(lambda micro_batch: DrainRequested(toy.now, "last") if micro_batch == at else None)
    assert end.state in (EndState.DRAINED, EndState.DONE), end.why
    read = sorted(row[1:3] for row in toy.out if row[0] == "join")
    counted = sorted((row[1], time) for row in toy.out if row[0] == "sum" for time in row[3])
    assert read == counted
    assert sum(row[3] for row in toy.out if row[0] == "alarm") == len(read)
    assert end.state is EndState.DONE or toy.savepoints == ["last"]
    assert toy.calls == ["shutdown", "teardown"]


@pytest.mark.contract("END-03", "SDF-11")
@settings(max_examples=20, deadline=None)
@given(feeds=_FEEDS, seed=st.integers(0, 1000), at=st.integers(1, 6), failures=st.sampled_from([0.0, 0.2]))
def test_suspended_and_resumed_job_has_same_output(feeds: dict[str, Feed], seed: int, at: int, failures: float) -> None:
    toy = Toy(feeds, seed, failures)
    end = toy.run(lambda micro_batch: SuspendRequested(toy.now, "here") if micro_batch == at else None)
    if end.state is EndState.STOPPED:
        assert toy.calls == ["teardown"]
        assert toy.prepared == 0
        assert toy.savepoints == ["here"]
        end = toy.run()
    assert end.state is EndState.DONE, end.why
    assert _rows(toy) == expected(feeds)


@pytest.mark.contract("WM-03", "END-01", "END-02")
@settings(max_examples=30, deadline=None)
@given(feeds=_FEEDS, seed=st.integers(0, 1000), lives=st.lists(st.integers(1, 30), max_size=8), drain=st.booleans())
def test_driver_dying_anywhere_loses_and_repeats_nothing(
    feeds: dict[str, Feed], seed: int, lives: list[int], drain: bool
) -> None:
    toy = Toy(feeds, seed, failures=0.1)
    end = None
    for events in lives:
        end = end or toy.drive(
            events, lambda micro_batch: DrainRequested(toy.now, "last") if drain and micro_batch == 3 else None
        )
    end = end or toy.run()
    assert not toy.unpublished
    assert toy.calls[-2:] == ["shutdown", "teardown"]
    if end.state is EndState.DRAINED:
        assert toy.savepoints == ["last"]
    else:
        assert end.state is EndState.DONE
        assert _rows(toy) == expected(feeds)
    read = sorted(row[1:3] for row in toy.out if row[0] == "join")
    assert read == sorted((row[1], time) for row in toy.out if row[0] == "sum" for time in row[3])


@pytest.mark.contract("END-04")
def test_cancelled_job_tears_down_without_commit() -> None:
    toy = Toy(_SOME, looks=1)
    end = toy.run(lambda micro_batch: CancelRequested(toy.now) if micro_batch == 2 else None)
    assert end.state is EndState.CANCELLED
    assert toy.head == 2
    assert toy.calls == ["teardown"]
    assert toy.prepared == 0


@pytest.mark.contract("ENG-06", "WM-06")
def test_source_that_is_never_due_fails_job() -> None:
    feeds = {"read": _SOME["read"], "rates": Feed([(b"", 4)], poll_at=MAX_TIMESTAMP)}
    toy = Toy(feeds)
    end = toy.run()
    assert end.state is EndState.FAILED
    assert "\n  - 'rates': input of 'rates' is at" in end.why
    assert "1 restriction(s) of size 0 " in end.why
    assert "'join': input of 'join' is at 1970-01-01T00:00:00.000011Z, held by blocked element" in end.why
    assert "elements are blocked until output 'main' of 'rates' is past 1970-01-01T00:00:00.000019Z" in end.why
    # Other output is committed, and stays.
    assert sum(row[0] == "sum" for row in toy.out) == 6
    assert toy.calls == ["teardown"]


@pytest.mark.contract("ENG-06", "ENG-07")
def test_source_polled_without_delay_warns_and_costs_little() -> None:
    toy = Toy({"read": _SOME["read"], "rates": Feed([(b"", 4)], poll_at=0)})
    end = toy.run(lambda micro_batch: CancelRequested(toy.now) if len(toy.warnings) == 3 else None)
    assert end.state is EndState.CANCELLED
    assert [text.split(" micro-batches")[0] for text in toy.warnings] == ["100", "200", "400"]
    # These micro-batches are a second apart, except for the first ones.
    assert toy.now > (toy.micro_batches - 20) * 1_000_000


def test_drain_ends_endless_source() -> None:
    toy = Toy({"read": _SOME["read"], "rates": Feed([(b"", 4)], poll_at=0)})
    end = toy.run(lambda micro_batch: DrainRequested(toy.now, "last") if micro_batch == 20 else None)
    assert end.state is EndState.DRAINED
    assert toy.truncated == 1
    assert _rows(toy) == expected({"read": _SOME["read"], "rates": Feed([(b"", 4)])})


@pytest.mark.contract("SDF-06")
def test_waiting_restrictions_share_budget() -> None:
    toy = Toy({"read": Feed([(b"a", time) for time in range(9)]), "rates": Feed([(b"", 4)] * 9)}, seed=1)
    toy.run()
    # Two sources in each of two shards, and three stages downstream, of which two have windows and timers. Half of them
    # are idle. New work is unknown beforehand; in the second micro-batch, two restrictions wait in the second shard.
    assert toy.parts[:5] == [1.0] * 5
    assert toy.parts[5:10] == [0.5, 1.0, 0.5, 1.0, 1.0]


@pytest.mark.parametrize("seed", range(3))
def test_idle_shards_report_what_a_run_would(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    run = EngineTask.run
    reports: list[TaskReport] = []

    def noted(self: EngineTask, *around: Any) -> TaskReport:
        reports.append(run(self, *around))
        return reports[-1]

    monkeypatch.setattr(EngineTask, "run", noted)
    Toy(_SOME, seed).run()
    quick, reports = reports, []
    monkeypatch.setattr(EngineTask, "_resting", lambda *around: None)
    Toy(_SOME, seed).run()
    assert quick == reports
    assert any(stage.idle for report in quick for stage in report.stages)
