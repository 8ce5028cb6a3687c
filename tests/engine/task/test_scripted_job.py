"""A whole scripted job in memory: despite failures, each event happens once, after all effects of earlier ones."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arcbeam.engine.coordinator import EndState
from arcbeam.model.script import AddElements, AdvanceClock, AdvanceWatermark, ScriptEvent
from arcbeam.model.timestamps import Duration, Timestamp
from tests.engine.task.toy import Feed, Toy, expected

pytestmark = pytest.mark.contract("ENG-09")

Line = tuple[str, list[tuple[bytes, int]], int]
"""Elements of a source (key, time), and advances of the clock."""

_LINES = st.lists(
    st.tuples(
        st.sampled_from(["read", "rates"]),
        st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.integers(0, 40)), max_size=3),
        st.integers(1, 5),
    ),
    max_size=8,
)


def script_of(lines: Sequence[Line]) -> list[ScriptEvent]:
    """Elements, each followed by a correct watermark."""
    script: list[ScriptEvent] = []
    for at, (source, elements, by) in enumerate(lines):
        script.append(AddElements(source, tuple((key, Timestamp(time)) for key, time in elements)))
        to_come = [time for name, more, _ in lines[at + 1 :] for _, time in more if name == source]
        script += [AdvanceClock(Duration(by)), AdvanceWatermark(source, Timestamp(min(to_come, default=50)))]
    return script


def feeds_of(lines: Sequence[Line]) -> dict[str, Feed]:
    return {name: Feed([each for of, more, _ in lines for each in more if of == name]) for name in ("read", "rates")}


@given(
    lines=_LINES,
    seed=st.integers(0, 1000),
    failures=st.sampled_from([0.0, 0.3]),
    doubles=st.sampled_from([0.0, 0.3]),
    lives=st.lists(st.integers(1, 30), max_size=8),
)
@settings(max_examples=40)
def test_each_script_event_happens_once_despite_failures(
    lines: list[Line], seed: int, failures: float, doubles: float, lives: list[int]
) -> None:
    toy = Toy({}, seed, failures, doubles=doubles, script=script_of(lines))
    for events in lives:
        if toy.drive(events) is not None:
            break
    else:
        assert toy.run().state is EndState.DONE
    assert sorted(toy.out, key=repr) == expected(feeds_of(lines))
    assert toy.drops == []
    assert (toy.script_place.events, toy.script_place.over) == (3 * len(lines) + 1, True)
    # Only the script moves the clock.
    assert toy.head_time == sum(by for _, _, by in lines)


def test_effects_of_event_precede_next_event() -> None:
    lines: list[Line] = [("rates", [(b"", 3)], 1), ("read", [(b"a", 4)], 1), ("read", [(b"b", 12)], 1)]
    toy = Toy({}, script=script_of(lines))
    seen: dict[int, list[tuple[object, ...]]] = {}

    def look(micro_batch: int) -> None:
        seen[toy.script_place.events] = sorted({row[0] for row in toy.out})

    assert toy.run(look).state is EndState.DONE
    # Elements blocked by a side input wait for a window's end; sums and alarms of the first window are due at 12.
    assert seen[3] == []
    assert seen[4] == ["join"]
    assert seen[6] == ["alarm", "join", "sum"]
