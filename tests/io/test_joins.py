"""Joins within bounds of time, compared with all pairs computed independently, for any order of elements."""

from __future__ import annotations

import random
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.transforms import window
from apache_beam.utils.timestamp import Duration

from arcbeam.engine.grouping.groupings import WindowedElement
from arcbeam.io import JoinWithin, joins
from arcbeam.io.joins import _tagged
from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from tests.golden import check_message
from tests.harness.drive import Collect, Driven
from tests.harness.streaming.microbatches import InMicroBatches, MicroBatch, Shard

SECOND = 1_000_000
Sides = tuple[list[tuple[str, Any, int]], list[tuple[str, Any, int]]]
BOUNDS = [(0, 0), (0, 10), (5, 0), (3, 7), (-2, 6), (6, -2), (1000, 1000)]


def sides(seed: int) -> Sides:
    """Return random (key, value, second) of the left and of the right side."""
    chance = random.Random(seed)
    return tuple(  # type: ignore[return-value]
        [(chance.choice("ab"), f"{side}{n}", chance.randrange(40)) for n in range(chance.randrange(25))]
        for side in ("left", "right")
    )


def expected(of: Sides, before: int, after: int, how: str, size: int = 0) -> list[Any]:
    """Return all pairs, and left elements without partners when they expire: at the end of their window at latest."""
    found: list[Any] = []
    for key, value, at in of[0]:
        pairs = [
            (key, value, other, max(at, then) * SECOND)
            for its, other, then in of[1]
            if its == key and -before <= then - at <= after and (not size or then // size == at // size)
        ]
        if not pairs and how == "left":
            end = (at // size + 1) * size * SECOND - 1 if size else MAX_TIMESTAMP
            pairs = [(key, value, None, min(max(at, at + after) * SECOND, end))]
        found += pairs
    return sorted(found, key=repr)


def joined(p: Any, of: Sides, before: int, after: int, how: Any, size: int = 0) -> Any:
    both = []
    for name, side in zip(("left", "right"), of, strict=True):
        timed = p | name >> beam.Create(side, reshuffle=False) | f"times {name}" >> beam.Map(_timed)
        both.append(timed | f"windows {name}" >> beam.WindowInto(window.FixedWindows(size)) if size else timed)
    return tuple(both) | JoinWithin(before=before, after=Duration(after), how=how) | beam.Map(_reported) | Collect()


def _timed(element: Any) -> Any:
    key, value, at = element
    return window.TimestampedValue((key, value), at)


def _reported(pair: Any, time: Any = beam.DoFn.TimestampParam) -> Any:
    return pair[0], *pair[1], time.micros


MOST = [joins.ELEMENTS_MAX, 0, 3]
"""Numbers of elements of a key that fit into one value, before they move to lists."""


@pytest.mark.contract("WM-08")
@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize(("before", "after"), BOUNDS)
def test_batch_emits_all_pairs(before: int, after: int, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed, most in enumerate(MOST):
        monkeypatch.setattr(joins, "ELEMENTS_MAX", most)
        of = sides(seed)
        with Driven() as p:
            joined(p, of, before, after, how)
        assert sorted(p.values(), key=repr) == expected(of, before, after, how)


@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize("most", MOST)
def test_partners_share_a_window(how: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joins, "ELEMENTS_MAX", most)
    of = sides(7)
    with Driven() as p:
        joined(p, of, 8, 8, how, size=10)
    assert sorted(p.values(), key=repr) == expected(of, 8, 8, how, size=10)


@pytest.mark.contract("WM-08")
@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize(("before", "after"), BOUNDS)
@pytest.mark.parametrize("seed", range(3))
def test_micro_batches_emit_all_pairs_and_forget_all(
    before: int, after: int, how: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joins, "ELEMENTS_MAX", MOST[seed])
    of, chance = sides(seed), random.Random(seed)

    def cut(shard: Shard, arrived: list[tuple[bytes, WindowedElement]]) -> None:
        """Deliver elements out of order, but none after the watermark has passed its time."""
        chance.shuffle(arrived)
        watermark = MIN_TIMESTAMP
        while arrived:
            some = chance.randrange(1, 5)
            now, arrived = arrived[:some], arrived[some:]
            shard.run(MicroBatch([(key, [one]) for key, one in now], watermark, runs=chance.choice([1, 2])))
            watermark = max(watermark, min((one[1] for _, one in arrived), default=watermark))
            shard.settle(MicroBatch((), watermark))
        # After the last element of either side, plus its waiting time, the state is empty.
        shard.settle(MicroBatch((), Timestamp((40 + max(0, before, after)) * SECOND + 1)))
        assert not shard.left_over()

    with InMicroBatches(cut) as p:
        joined(p, of, before, after, how)
    assert sorted(p.values(), key=repr) == expected(of, before, after, how)


@pytest.mark.contract("WM-08")
@pytest.mark.parametrize(("before", "after"), [(6, -2), (2 * 86400, 2 * 86400)])
def test_keys_with_many_elements_at_limits_of_event_time(
    before: int, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The searched range is then partly or wholly outside of event time."""
    monkeypatch.setattr(joins, "ELEMENTS_MAX", 0)
    ends = MIN_TIMESTAMP // SECOND + 1, END_OF_GLOBAL_WINDOW // SECOND - 1
    times = [end + off for end in ends for off in (0, 5 if end < 0 else -5)]
    of: Sides = tuple([("k", f"{side}{at}", at) for at in times] for side in ("l", "r"))  # type: ignore[assignment]
    with InMicroBatches(None) as p:
        joined(p, of, before, after, "left")
    found = [each[:3] for each in p.values()]
    assert sorted(found, key=repr) == [each[:3] for each in expected(of, before, after, "left")]


def test_invalid_joins_are_refused() -> None:
    with pytest.raises(ValueError, match="after=-2"):
        JoinWithin(before=1, after=-2)
    with pytest.raises(ValueError, match="how='right'"):
        JoinWithin(how="right")  # type: ignore[arg-type]
    p = beam.Pipeline()
    left = p | beam.Create([("a", 1)])
    for name, inputs in (("one collection", left), ("a dict", {"left": left, "right": left})):
        with pytest.raises(ValueError, match="JoinWithin") as caught:
            _ = inputs | name >> JoinWithin()
        check_message("join-of-other-inputs", str(caught.value))
    with pytest.raises(ValueError, match=r"JoinWithin\(after='1 minute'\): expected a duration"):
        JoinWithin(after="1 minute")  # type: ignore[arg-type]
    sessions = left | "Sessions" >> beam.WindowInto(window.Sessions(60))
    with pytest.raises(ValueError, match="JoinWithin") as caught:
        _ = (sessions, sessions) | "merging" >> JoinWithin(after=1)
    check_message("join-of-merging-windows", str(caught.value))
    with pytest.raises(ValueError, match="elements of the right side have type <class 'int'>"):
        _ = (left, p | "Numbers" >> beam.Create([1])) | "numbers" >> JoinWithin(after=1)
    for wrong in (5, ("a", 1, 2), None, "ab", b"ab", {"a": 1, "b": 2}, {"a", "b"}):
        with pytest.raises(ValueError, match="an element of the left side is not a pair"):
            _tagged(wrong, False)
    with pytest.raises(ValueError, match="JoinWithin") as caught:
        _ = (left, left | beam.WindowInto(window.FixedWindows(1))) | JoinWithin()
    check_message("join-of-different-windows", str(caught.value))
