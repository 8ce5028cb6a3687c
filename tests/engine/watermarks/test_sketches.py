"""A quantile of the recent times of all shards, without effect of much older times."""

from __future__ import annotations

import random
import re
import sys

import pytest

from arcbeam.engine.watermarks.clocks import Local, OutputTime, Port
from arcbeam.engine.watermarks.sketches import TIMES_MAX, Recent, quantile_of, sketched, with_more
from arcbeam.engine.watermarks.stages import StageFlow, Watermarks
from arcbeam.errors import SetupError
from arcbeam.model.observers import Observer
from arcbeam.model.timestamps import MIN_TIMESTAMP, Duration, Timestamp

pytestmark = pytest.mark.contract("WM-04")

_NOW = 1_700_000_000_000_000
_FAR = 9_000_000_000_000_000


def test_few_outliers_do_not_count() -> None:
    times = [_NOW + n for n in range(1000)]
    recent = with_more(None, [sketched(times[::2]), sketched([_FAR] * 5), sketched(times[1::2])])
    latest = quantile_of(recent, 0.99)
    assert latest is not None
    assert times[980] <= latest <= times[-1]


def test_too_few_times_have_no_quantile() -> None:
    recent = with_more(None, [sketched([_NOW] * 50)])
    assert quantile_of(recent, 0.99) is None
    assert quantile_of(with_more(recent, [sketched([_NOW] * 50)]), 0.99) == _NOW


def test_old_times_have_no_effect() -> None:
    recent: Recent | None = None
    for micro_batch in range(12):
        recent = with_more(recent, [sketched([_NOW + micro_batch * 1_000_000] * (TIMES_MAX // 4))])
    assert recent is not None
    assert quantile_of(recent, 0.01) == _NOW + 4 * 1_000_000
    assert max(map(len, recent)) < 2500


def test_sketches_merge_in_any_order_and_survive_encoding() -> None:
    chance = random.Random(1)
    parts = [sketched([chance.randrange(_NOW, 2 * _NOW) for _ in range(300)]) for _ in range(7)]
    forwards, backwards = with_more(None, parts), with_more(None, reversed(parts))
    assert forwards == backwards == Recent.decoded(forwards.encoded())


def test_watermark_follows_quantile_instead_of_maximum() -> None:
    observer = Observer("clicks", Duration(10), quantile=0.9)
    port = Port("read", "main")
    marks = Watermarks([StageFlow("read", (), ("main",), 2, {"main": (observer,)})])
    for shard in range(2):
        sketch = sketched([*range(1000, 1000 + 99), _FAR])
        local = Local(None, {"main": OutputTime()}, None, {}, {"clicks": sketch})
        marks.report("read", shard, Local(local.pending, {"main": OutputTime()}, None, {}, local.sketches))
    # The input is at the end and has no hold, so the output waits for nothing else.
    assert marks.advance().outputs[port] > MIN_TIMESTAMP
    times = marks.times()
    assert 1080 <= times.seen["clicks"] <= 1099
    assert set(times.recent) == {"clicks"}
    resumed = Watermarks([StageFlow("read", (), ("main",), 2, {"main": (observer,)})], times)
    for shard in range(2):
        resumed.report("read", shard, Local(None, {"main": OutputTime()}))
    assert resumed.advance().recent == times.recent
    assert Timestamp(times.seen["clicks"]) == resumed.times().seen["clicks"]


def test_worker_without_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasketches", None)
    with pytest.raises(SetupError, match=re.escape(sys.executable)):
        sketched([_NOW])
