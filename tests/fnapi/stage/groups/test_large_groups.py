"""Large groups: an SDK worker reads their values in pages, and may read them again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.transforms import trigger, window

from arcbeam.fnapi.stage import staterequests
from arcbeam.fnapi.stage.staterequests import StateRequests
from arcbeam.harness.streaming import elements
from tests.fnapi.stage.inworkers import InWorkers, worker_service
from tests.harness.drive import Collect


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    with worker_service() as address:
        yield address


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Make groups of more than 100 bytes large, with pages of 200 bytes; return the sizes of pages that were sent."""
    monkeypatch.setattr(elements, "_EAGER_BYTES", 100)
    monkeypatch.setattr(staterequests, "_PAGE", 200)
    sizes: list[int] = []
    answer = StateRequests.answer

    def counted(self: StateRequests, request: Any) -> Any:
        found = answer(self, request)
        if request.state_key.WhichOneof("type") == "runner":
            sizes.append(len(found.get.data))
        return found

    monkeypatch.setattr(StateRequests, "answer", counted)
    return sizes


def twice(key: str, values: Any) -> Any:
    """Read the values twice, in turn."""
    return key, sorted(a for a, b in zip(values, values, strict=True) if a == b)


@pytest.mark.contract("API-03")
def test_large_group_is_read_in_pages(service: str, pages: list[int]) -> None:
    pairs = [("large", f"value {n}") for n in range(150)] + [("small", "one")]
    with InWorkers(service) as p:
        _ = p | beam.Create(pairs) | beam.GroupByKey() | beam.MapTuple(twice) | Collect()
    assert sorted(p.values()) == [("large", sorted(value for _, value in pairs[:-1])), ("small", ["one"])]
    assert len(pages) > 10
    assert max(pages) < 250


def test_large_panes_of_one_key_are_apart(service: str, pages: list[int]) -> None:
    def build(p: Any) -> None:
        timed = p | beam.Create(range(400)) | beam.Map(lambda n: window.TimestampedValue((n % 2, n), n % 20))
        windowed = timed | beam.WindowInto(
            window.FixedWindows(10),
            trigger=trigger.AfterWatermark(),
            accumulation_mode=trigger.AccumulationMode.DISCARDING,
        )
        _ = windowed | beam.GroupByKey() | beam.MapTuple(twice) | Collect()

    with InWorkers(service) as p:
        build(p)
    expected = [(k, [n for n in range(400) if n % 2 == k and (n % 20) // 10 == w]) for k in (0, 1) for w in (0, 1)]
    assert sorted(p.values()) == sorted(expected)
    assert pages
