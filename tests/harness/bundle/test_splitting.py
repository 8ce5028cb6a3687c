"""When the running restriction is split: each restriction of a bundle is watched as if it were the first."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from arcbeam.harness.bundle import splitting
from arcbeam.harness.bundle.splitting import Splitter

EventLog = tuple[str, ...]
STORIES: dict[str, EventLog] = {
    "waits": ("left 9", "look", "look"),
    "has little left": ("left 1", "look", "look"),
    "progresses by its remainder": ("left 5", "look", "left 4", "look", "look"),
    "claims": ("left 5", "claim", "look", "look"),
    "outputs": ("left 5", "output", "look", "look"),
    "does not know its progress": ("left ?", "look", "output", "look"),
    "cannot be split for some time": ("claim", "refuse", "look", "look", "look", "accept", "look", "look"),
    "fails in a split": ("claim", "fail", "look", "look"),
    "cannot be split at all": ("claim", "unsplittable", "look", "look"),
    "takes long": ("left 7", *["look"] * 40),
    "takes long after it was stopped": ("claim", *["look"] * 40),
}


class Restriction:
    """The SDK's operation with a restriction, and a clock that advances by a second between two looks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.made, self.left, self.answer = 100.0, 0, "9", "accept"
        self.calls: list[Any] = []
        self.receivers = [SimpleNamespace(opcounter=SimpleNamespace(element_counter=self))]
        self.name_context = SimpleNamespace(step_name="Read/Process")
        monkeypatch.setattr(splitting, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(splitting._LOG, "warning", lambda _, step, seconds, why: self.calls.append((seconds, why)))

    def value(self) -> int:
        return self.made

    def current_element_progress(self) -> Any:
        if self.left == "?":
            raise NotImplementedError
        return SimpleNamespace(fraction_remaining=int(self.left) / 10, remaining_work=float(self.left))

    def try_split(self, fraction: float) -> Any:
        self.calls.append(fraction)
        if self.answer == "fail":
            raise ArithmeticError("no")
        if self.answer == "unsplittable":
            raise NotImplementedError
        return None if self.answer == "refuse" else ([], [(self, f"rest {fraction}")])

    def run(self, splitter: Splitter, event_log: EventLog) -> list[Any]:
        """Process a restriction; return what the splitter did."""
        self.calls, self.left, self.answer = [], "9", "accept"
        splitter.begin()
        for word in event_log:
            match word.split():
                case ["left", left]:
                    self.left = left
                case ["claim"]:
                    splitter.claimed = True
                case ["output"]:
                    self.made += 1
                case ["look"]:
                    self.now += 1
                    splitter._look()
                case [answer]:
                    self.answer = answer
        try:
            return [*self.calls, splitter.end()]
        except RuntimeError as e:
            return [*self.calls, str(e)]


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Callable[[], tuple[Restriction, Splitter]]:
    def make() -> tuple[Restriction, Splitter]:
        op = Restriction(monkeypatch)
        return op, Splitter(op, lambda op, rest: rest, 0.0, lambda: 3, interval=0.5, patience=5.0)

    return make


@pytest.mark.contract("SDF-05")
@pytest.mark.parametrize(("first", "second"), [*itertools.product(STORIES, repeat=2)])
def test_second_restriction_is_watched_like_a_first(
    pair: Callable[[], tuple[Restriction, Splitter]], first: str, second: str
) -> None:
    op, splitter = pair()
    alone = op.run(splitter, STORIES[second])
    op, splitter = pair()
    op.run(splitter, STORIES[first])
    assert op.run(splitter, STORIES[second]) == alone


@pytest.mark.contract("SDF-05")
def test_restriction_is_split_once_it_has_progressed(pair: Callable[[], tuple[Restriction, Splitter]]) -> None:
    op, splitter = pair()
    found = {name: op.run(splitter, event_log) for name, event_log in STORIES.items()}
    assert found["waits"] == found["has little left"] == [[]]
    taken = [2 / 3, 1 / 2, 0.0, ["rest 0.6666666666666666", "rest 0.5", "rest 0.0"]]
    for name in ("progresses by its remainder", "claims", "outputs", "does not know its progress"):
        assert found[name] == taken
    assert found["fails in a split"] == [2 / 3, "ArithmeticError in a split: no"]
    assert found["cannot be split at all"] == [2 / 3, []]
    assert [seconds for seconds, _ in found["takes long"][:-1]] == [5, 10, 20]
    assert found["takes long after it was stopped"][:3] == taken[:3]


@pytest.mark.contract("SDF-05")
@pytest.mark.parametrize("answer", ["fail", "accept"])
def test_restriction_after_a_failed_one_has_its_own_residuals(
    pair: Callable[[], tuple[Restriction, Splitter]], answer: str
) -> None:
    op, splitter = pair()
    splitter.begin()
    splitter.claimed, op.answer = True, answer
    splitter._look()
    splitter.abandon()
    assert op.run(splitter, STORIES["waits"]) == [[]]
    assert op.run(splitter, STORIES["claims"])[-1] == ["rest 0.6666666666666666", "rest 0.5", "rest 0.0"]
