"""An outlier is not accepted until other times are near it, however a stream is cut."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from arcbeam.engine.watermarks import outlierfilter
from arcbeam.engine.watermarks.clocks import Local, OutputTime, Port
from arcbeam.engine.watermarks.holds import Hold, HolderKind
from arcbeam.engine.watermarks.outlierfilter import without_outliers
from arcbeam.engine.watermarks.stages import StageFlow, Watermarks, WatermarkTimes
from arcbeam.model.observers import UNCONFIRMED_MAX, Observer
from arcbeam.model.timestamps import MIN_TIMESTAMP, Duration, Timestamp
from tests.golden.texts import check_message

pytestmark = pytest.mark.contract("WM-04")

_JUMP, _OTHERS = 10, 2


def _decided(latest: int | None, *times: int) -> tuple[int | None, tuple[int, ...]]:
    return without_outliers(latest, times, _JUMP, _OTHERS)


@pytest.mark.parametrize(
    ("latest", "times", "now", "unconfirmed"),
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
def test_time_near_accepted_or_enough_others_is_accepted(
    latest: int | None, times: list[int], now: int | None, unconfirmed: tuple[int, ...]
) -> None:
    assert _decided(latest, *times) == (now, unconfirmed)


def test_stream_of_outliers_only_still_advances() -> None:
    times = [1000 * n for n in range(3 * UNCONFIRMED_MAX)]
    latest, unconfirmed = _decided(None, *times)
    assert latest == 2000 * 1000
    assert len(unconfirmed) == UNCONFIRMED_MAX - 1
    near = [latest + 5, latest + 15]
    assert _decided(None, *times, *near)[0] == 2000 * 1000 + 15, "with its neighbours"


_TIMES = st.lists(st.integers(-200, 200) | st.integers(-2000, 2000), max_size=40)


_NEAR = st.lists(st.integers(0, 12).map(lambda n: 10 * n), max_size=8)
"""Times of which many are a jump apart."""


@given(
    st.one_of(st.lists(_TIMES, min_size=1, max_size=5), st.lists(_NEAR, min_size=1, max_size=5)),
    st.sampled_from([(UNCONFIRMED_MAX, 2), (2, 1), (3, 1), (3, 2), (4, 3), (5, 2), (5, 4)]),
)
@example([[0, 10, 100]], (3, 2))
@example([[0, 5, 10, 100]], (4, 3))
def test_result_is_independent_of_cuts_and_order(parts: list[list[int]], limits: tuple[int, int]) -> None:
    """Also if there are more unconfirmed times than are kept. Without new times nothing changes."""
    (first, *more), (most, others) = parts, limits
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outlierfilter, "UNCONFIRMED_MAX", most)
        whole = without_outliers(None, [*first, *(time for part in more for time in part)], _JUMP, others)
        # Each part is a shard's, which does not know the others; micro-batches are taken one by one.
        now = without_outliers(None, first, _JUMP, others)
        for part in (*more, []):
            own, before = without_outliers(None, part, _JUMP, others), now
            latest = max((each for each in (now.latest, own.latest) if each is not None), default=None)
            now = without_outliers(latest, [*now.unconfirmed, *own.unconfirmed], _JUMP, others)
            assert before.latest is None or (now.latest is not None and now.latest >= before.latest)
        assert now == whole
        assert len(now.unconfirmed) < most


@given(_TIMES, st.integers(-2000, 2000), st.integers(1, _JUMP))
def test_continuing_stream_is_accepted_soon(before: list[int], start: int, apart: int) -> None:
    chain = [start + n * apart for n in range(_OTHERS + 1)]
    latest, unconfirmed = _decided(None, *before, *chain)
    assert latest is not None
    assert latest >= chain[-1]
    assert all(time > latest for time in unconfirmed)


def _flow(jump: int | None = _JUMP) -> StageFlow:
    span = None if jump is None else Duration(jump)
    return StageFlow("read", (), ("main",), 2, {"main": (Observer("clicks", Duration(1), max_jump=span),)})


def _micro_batch(marks: Watermarks, *shards: Sequence[int]) -> WatermarkTimes:
    silent = Hold(MIN_TIMESTAMP, HolderKind.RESIDUAL, "it")
    for shard, times in enumerate(shards):
        latest, unconfirmed = _decided(None, *times)
        seen = {} if latest is None else {"clicks": Timestamp(latest)}
        later = {"clicks": tuple(map(Timestamp, unconfirmed))} if unconfirmed else {}
        marks.report("read", shard, Local(silent, {"main": OutputTime(silent)}, None, seen, {}, later))
    return marks.advance()


def test_unconfirmed_time_is_kept_and_confirmed_by_later_micro_batches() -> None:
    marks = Watermarks([_flow()])
    times = _micro_batch(marks, [5, 6, 7], [100])
    assert (times.seen, times.unconfirmed) == ({"clicks": 7}, {"clicks": (100,)})
    check_message("watermark-unconfirmed-times", str(marks.explain_output(Port("read", "main"))))
    marks = Watermarks([_flow()], times)
    times = _micro_batch(marks, [8, 100], [101])
    assert (times.seen, times.unconfirmed) == ({"clicks": 8}, {"clicks": (100, 101)})
    assert set(times.outputs.values()) == {7}
    marks = Watermarks([_flow()], times)
    after = _micro_batch(marks, [], [110])
    after.check_after(times)
    assert (after.seen, after.unconfirmed) == ({"clicks": 110}, {})
    assert set(after.outputs.values()) == {109}


def test_unconfirmed_time_is_accepted_when_stream_reaches_it() -> None:
    marks = Watermarks([_flow()])
    assert _micro_batch(marks, [5, 6, 7], [25]).unconfirmed == {"clicks": (25,)}
    times = _micro_batch(marks, [15], [])
    assert (times.seen, times.unconfirmed) == ({"clicks": 25}, {})


def test_observer_without_filter_drops_unconfirmed_times() -> None:
    times = _micro_batch(Watermarks([_flow()]), [5, 6, 7], [100])
    assert _micro_batch(Watermarks([_flow(None)], times), [8], []).unconfirmed == {}
