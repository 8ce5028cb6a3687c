"""Sessions by hand: merging, and the same visits as Beam's own session windows."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.sessions_stateful import GAP, Visit, made_up_log, main, merge


def events(seconds: list[int]) -> list[Visit]:
    return [Visit(second, second, 1) for second in seconds]


def test_events_a_gap_apart_are_two_visits() -> None:
    assert merge(events([0, 9, 19]), gap=10) == [Visit(0, 9, 2), Visit(19, 19, 1)]


def test_event_between_visits_joins_them() -> None:
    assert merge([Visit(0, 5, 3), Visit(20, 25, 2), Visit(12, 12, 1)], gap=10) == [Visit(0, 25, 6)]


@given(st.lists(st.integers(0, 200)), st.randoms(use_true_random=False))
def test_order_of_events_does_not_matter(seconds: list[int], chance: object) -> None:
    shuffled = sorted(seconds)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    one_by_one: list[Visit] = []
    for event in events(shuffled):
        one_by_one = merge([*one_by_one, event], gap=10)
    assert one_by_one == merge(events(seconds), gap=10)


def test_generated_log_is_deterministic() -> None:
    assert made_up_log() == made_up_log()


def expected(log: list[str]) -> set[str]:
    by_user: dict[str, list[int]] = {}
    for line in log:
        user, second, _ = line.split(",")
        by_user.setdefault(user, []).append(int(second))
    return {
        ",".join(map(str, (user, *visit))) for user, seconds in by_user.items() for visit in merge(events(seconds), GAP)
    }


@pytest.mark.usefixtures("spark")
def test_visits_of_a_log(tmp_path: Path) -> None:
    log = made_up_log(users=20)
    (tmp_path / "log.csv").write_text("\n".join(log) + "\n")
    arguments = ["--input", str(tmp_path / "log.csv"), "--output", str(tmp_path / "out")]
    assert main(["--runner=arcbeam.ArcbeamRunner", *arguments]) == 0
    found = [line for file in (tmp_path / "out").glob("visits-*.csv") for line in file.read_text().splitlines()]
    assert len(found) == len(set(found))
    assert set(found) == expected(log)
