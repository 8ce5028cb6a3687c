"""What a pipeline declares of observers, and what its plan contains of them."""

from __future__ import annotations

import pytest

from arcbeam.model.observers import Observer, Observing, Policy, all_observers, observer_name
from arcbeam.model.timestamps import Duration

ALL = Observing(5, Policy.MAX, 6, 7, 0.5, 8, 9, Policy.MIN)


@pytest.mark.parametrize("observing", [ALL, Observing(5)])
def test_declaration_is_read_as_written(observing: Observing) -> None:
    assert Observing.from_bytes(observing.to_text().encode()) == observing


@pytest.mark.parametrize(
    ("transform", "name"),
    [("A/Observe", "A"), ("A/B/Observe2", "A/B"), ("A/Other", "A/Other"), ("Observe", ""), ("Other", "Other")],
)
def test_observer_has_name_of_its_composite(transform: str, name: str) -> None:
    assert observer_name(transform) == name


def test_observer_takes_all_that_is_declared() -> None:
    upstream = Observer("U", Duration(1))
    observer = ALL.observer("A/Observe", (upstream, None))
    assert observer == Observer(
        "A",
        Duration(5),
        Policy.MAX,
        (upstream, None),
        idle_after=Duration(7),
        quantile=0.5,
        max_jump=Duration(8),
        confirmed_by=9,
        max_skew=Duration(6),
        shared=Policy.MIN,
        part="A/Observe",
    )


def test_missing_declarations_are_no_limits() -> None:
    observer = Observing(5).observer("A/Observe", (None,))
    assert (observer.idle_after, observer.max_jump, observer.max_skew, observer.part) == (None, None, None, "")


def test_observers_of_a_path_are_upstream_first() -> None:
    first = Observer("first", Duration(1))
    second = Observer("second", Duration(1), upstream=(None, first))
    assert [each.name for each in all_observers((None, second, first))] == ["first", "second", "first"]
