"""A time that is too far ahead of all others is not believed, unless others are near it; however a stream is cut."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arcbeam.engine.watermarks.clocks import Local, OutputTime, Port
from arcbeam.engine.watermarks.holds import Hold, HolderKind
from arcbeam.engine.watermarks.outlierfilter import Belief, believed
from arcbeam.engine.watermarks.stages import StageFlow, Times, Watermarks
from arcbeam.model.observers import MOST, Observer
from arcbeam.model.timestamps import MIN_TIMESTAMP, Duration, Timestamp

pytestmark = pytest.mark.contract("WM-04")

_JUMP, _OTHERS = 10, 2


def _believed(latest: int | None, *times: int) -> tuple[int | None, tuple[int, ...]]:
    return believed(latest, times, _JUMP, _OTHERS)


@pytest.mark.parametrize(
    ("latest", "times", "now", "doubted"),
    [
        (50, [60], 60, ()),
        (50, [61], 50, (61,)),
        (50, [60, 70, 80], 80, ()),
        (50, [55, 1000, 40], 55, (1000,)),
        (50, [1000, 1000, 1000, 1000], 50, (1000,)),
        (50, [1000, 1010], 50, (1000, 1010)),
        (50, [1000, 1010, 1020], 1020, ()),
        (50, [1000, 1011, 1022], 50, (1000, 1011, 1022)),
        (50, [100, 101, 1000, 1001, 1002, 2000], 1002, (2000,)),
        (None, [], None, ()),
        (None, [5, 7], None, (5, 7)),
        (None, [5, 7, 9, 5000], 9, (5000,)),
        (None, [5000, 5, 5001, 7, 9], 9, (5000, 5001)),
        (-50, [-61, -40, -29], -40, (-29,)),
    ],
)
def test_a_time_is_believed_that_is_near_what_is_believed_or_near_enough_others(
    latest: int | None, times: list[int], now: int | None, doubted: tuple[int, ...]
) -> None:
    assert _believed(latest, *times) == (now, doubted)


def test_a_stream_whose_elements_are_all_too_far_apart_moves_on() -> None:
    times = [1000 * n for n in range(3 * MOST)]
    latest, doubted = _believed(None, *times)
    assert latest == 2000 * 1000
    assert len(doubted) == MOST - 1
    near = [latest + 5, latest + 15]
    assert _believed(None, *times, *near)[0] == 2000 * 1000 + 15, "with those that are near it"


_TIMES = st.lists(st.integers(-200, 200) | st.integers(-2000, 2000), max_size=40)


@given(_TIMES, st.lists(_TIMES, max_size=4))
def test_what_is_believed_does_not_depend_on_shards_and_micro_batches_and_order(
    first: list[int], more: list[list[int]]
) -> None:
    whole = _believed(None, *first, *(time for part in more for time in part))
    # Each part is a shard's, which knows nothing of the others; micro-batches are taken one by one.
    now: Belief | tuple[int | None, tuple[int, ...]] = _believed(None, *first)
    before = now[0]
    for part in more:
        own, doubted = _believed(None, *part)
        latest = max((each for each in (now[0], own) if each is not None), default=None)
        now = _believed(latest, *now[1], *doubted)
        assert before is None or (now[0] is not None and now[0] >= before), "it never goes back"
        before = now[0]
    assert now == whole


@given(_TIMES, st.integers(-2000, 2000), st.integers(1, _JUMP))
def test_where_a_stream_goes_on_it_is_believed_soon(before: list[int], start: int, apart: int) -> None:
    chain = [start + n * apart for n in range(_OTHERS + 1)]
    latest, doubted = _believed(None, *before, *chain)
    assert latest is not None
    assert latest >= chain[-1]
    assert all(time > latest for time in doubted)


def _flow(jump: int | None = _JUMP) -> StageFlow:
    span = None if jump is None else Duration(jump)
    return StageFlow("read", (), ("main",), 2, {"main": (Observer("clicks", Duration(1), max_jump=span),)})


def _micro_batch(marks: Watermarks, *shards: Sequence[int]) -> Times:
    silent = Hold(MIN_TIMESTAMP, HolderKind.RESIDUAL, "it")
    for shard, times in enumerate(shards):
        latest, doubted = _believed(None, *times)
        seen = {} if latest is None else {"clicks": Timestamp(latest)}
        later = {"clicks": tuple(map(Timestamp, doubted))} if doubted else {}
        marks.report("read", shard, Local(silent, {"main": OutputTime(silent)}, None, seen, {}, later))
    return marks.advance()


def test_what_is_not_believed_is_kept_and_said_and_what_confirms_it_may_come_later_and_elsewhere() -> None:
    marks = Watermarks([_flow()])
    times = _micro_batch(marks, [5, 6, 7], [100])
    assert (times.seen, times.doubted) == ({"clicks": 7}, {"clicks": (100,)})
    assert str(marks.explain_output(Port("read", "main"))).endswith(
        "has seen 1970-01-01T00:00:00.000007Z, less 0:00:00.000001, and does not believe 1 later time(s), the first of "
        "them 1970-01-01T00:00:00.000100Z"
    )
    marks = Watermarks([_flow()], times)
    times = _micro_batch(marks, [8, 100], [101])
    assert (times.seen, times.doubted) == ({"clicks": 8}, {"clicks": (100, 101)})
    assert set(times.outputs.values()) == {7}
    marks = Watermarks([_flow()], times)
    after = _micro_batch(marks, [], [110])
    after.check_after(times)
    assert (after.seen, after.doubted) == ({"clicks": 110}, {})
    assert set(after.outputs.values()) == {109}


def test_what_is_ahead_is_near_when_the_rest_has_come_there() -> None:
    marks = Watermarks([_flow()])
    assert _micro_batch(marks, [5, 6, 7], [25]).doubted == {"clicks": (25,)}
    times = _micro_batch(marks, [15], [])
    assert (times.seen, times.doubted) == ({"clicks": 25}, {})


def test_who_believes_all_has_no_doubts_of_before() -> None:
    times = _micro_batch(Watermarks([_flow()]), [5, 6, 7], [100])
    assert _micro_batch(Watermarks([_flow(None)], times), [8], []).doubted == {}
