"""The short cut equals the general code: the same effects, the same entries."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from arcbeam.engine.grouping.composites import AfterWatermark, Repeatedly
from arcbeam.engine.grouping.contents import TAIL_BYTES, EncodedPaneValues
from arcbeam.engine.grouping.effects import Effect, EmitPane
from arcbeam.engine.grouping.groupings import Grouping
from arcbeam.engine.grouping.strategy import Strategy
from arcbeam.engine.grouping.triggers import AfterCount
from arcbeam.model.timestamps import Duration
from arcbeam.testing.windowfns import FixedWindows
from tests.engine.grouping.grouping_shard import EVENT, PROCESSING, Shard
from tests.engine.grouping.grouping_strategies import groupings

DEFAULT = Repeatedly(AfterWatermark())


class NoShortWay:
    def add(self, *_: Any) -> None: ...

    fire = add


class Reported(Shard):
    """Records all effects."""

    def carry_out(self, effects: list[Effect]) -> None:
        self.__dict__.setdefault("effects", []).extend(map(shown, effects))
        super().carry_out(effects)


class Long(Reported):
    """Uses the general code."""

    @property
    def grouping(self) -> Grouping:
        grouping = super().grouping
        grouping._short = NoShortWay()  # type: ignore[assignment]
        return grouping


def shown(effect: Effect) -> Any:
    if isinstance(effect, EmitPane) and isinstance(effect.contents, EncodedPaneValues):
        return effect._replace(contents=list(effect.contents))
    return effect


acts = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(st.integers(-10, 40), min_size=1, max_size=8), st.sampled_from([3, 90])),
        st.tuples(st.just("advance"), st.integers(0, 15)),
        st.tuples(st.just("tick"), st.integers(0, 9)),
        st.tuples(st.just("fire"), st.integers(-10, 40), st.sampled_from([EVENT, PROCESSING])),
    ),
    max_size=12,
)
usual = st.builds(
    lambda trigger, size: (Strategy(trigger), FixedWindows(Duration(size), Duration(0))),
    st.sampled_from([DEFAULT, AfterWatermark(early=AfterCount(4))]),
    st.integers(5, 20),
)


@settings(max_examples=300)
@given(st.one_of(usual, groupings()), acts)
def test_short_cut_equals_general_code(grouping: tuple[Strategy, Any], acts: list[tuple[Any, ...]]) -> None:
    shards = [Reported(*grouping), Long(*grouping)]
    for act in [*acts, ("finish",)]:
        for shard in shards:
            do(shard, act)
        short, long = (shard.__dict__.get("effects", []) for shard in shards)
        assert short == long, act
        assert shards[0].view.snapshot() == shards[1].view.snapshot(), act


def do(shard: Shard, act: tuple[Any, ...]) -> None:
    match act:
        case "add", times, size:
            shard.add(times, values=[f"{time:.<{size}}".encode() for time in times])
        case "advance", by:
            shard.advance(max(shard.watermark, -10) + by)
        case "tick", by:
            shard.tick(shard.now + by)
        case "fire", time, domain:  # early, late, twice, or unrequested
            for window in shard.windowfn.assign(time):
                shard.timers.pop((b"k", window, domain), None)
                shard.carry_out(shard.grouping.fire(b"k", window, domain, shard.clocks()))
        case ("finish",):
            shard.finish()


def test_usual_life_uses_short_cut() -> None:
    shard = Shard(Strategy(DEFAULT), FixedWindows(Duration(10), Duration(0)))
    grouping, clocks = shard.grouping, shard.clocks()
    columns = {window: ([b"a"], [5]) for window in shard.windowfn.assign(5)}  # type: ignore[arg-type]
    assert grouping._short.add(b"k", b"r", columns, clocks) is not None  # type: ignore[arg-type]
    (window,) = columns
    at_end = clocks._replace(input_watermark=window.max_timestamp)
    assert grouping._short.fire(b"k", b"r", window, at_end) is None, "its end has not passed"
    assert grouping._short.fire(b"k", b"r", window, clocks._replace(input_watermark=window.end)) is not None
    assert not len(shard.view)


def test_declined_short_cut_changes_nothing() -> None:
    shard = Shard(Strategy(DEFAULT), FixedWindows(Duration(10), Duration(0)))
    big = [b"v" * (TAIL_BYTES + 1)]
    columns = {window: (big, [time]) for time in (5, 15) for window in shard.windowfn.assign(time)}  # type: ignore[arg-type]
    assert shard.grouping._short.add(b"k", b"r", columns, shard.clocks()) is None  # type: ignore[arg-type]
    assert not len(shard.view)
