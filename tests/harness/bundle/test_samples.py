"""Samples of a stage's outputs: which elements, and in which form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.transforms import userstate, window

from arcbeam.harness.bundle.samples import SAMPLES_MAX, TEXT_BYTES_MAX, cut, failure_record
from arcbeam.model.timestamps import MAX_TIMESTAMP
from tests.harness.drive import Collect
from tests.harness.streaming.microbatches import InMicroBatches, MicroBatch, Shard

pytestmark = pytest.mark.contract("PAGE-15")


class Mute:
    """Its repr fails."""

    def __repr__(self) -> str:
        raise ValueError("no text")


class Numbered(beam.DoFn):
    SEEN = userstate.CombiningValueStateSpec("seen", sum)

    def process(self, pair: tuple[int, int], seen: Any = beam.DoFn.StateParam(SEEN)) -> Iterator[Any]:
        seen.add(1)
        yield beam.pvalue.TaggedOutput("odd", pair) if pair[1] % 2 else pair[1]


def samples_of(numbers: int, transform: Any, *, sampled: bool = True) -> tuple[dict[str, Any], list[Any]]:
    """Return the samples of the stage after a grouping, by output; and all that it outputs."""
    found: list[dict[str, Any]] = []

    def run(shard: Shard, arrived: list[Any]) -> None:
        shard.stage.close()
        shard.stage = shard.opened(sampled=sampled)
        assert shard.stage.samples() == []
        shard.settle(MicroBatch([(key, [one]) for key, one in arrived], MAX_TIMESTAMP))
        found.extend(shard.stage.samples())

    p = InMicroBatches(run)
    with p:
        stamped = p | beam.Create(range(numbers)) | beam.Map(lambda n: window.TimestampedValue((0, n), n))
        _ = stamped | beam.WindowInto(window.FixedWindows(100)) | transform | Collect()
    return {each["output"]: each["elements"] for each in found}, p.values()


class Grouped(beam.PTransform):
    def expand(self, pairs: Any) -> Any:
        split = pairs | "Group" >> beam.GroupByKey() | "Split" >> beam.FlatMap(lambda pair: sorted(pair[1]))
        return split | "Text" >> beam.Map(lambda n: "ä" * 3000 if n == 1 else str(n)) | beam.Filter(bool)


def test_first_elements_of_each_output_with_time_windows_and_pane() -> None:
    found, values = samples_of(20, "Now" >> Grouped())
    assert len(values) == 20
    assert [each["value"] for each in found["Now/Split"]] == [str(n) for n in range(SAMPLES_MAX)]
    texts = [each["value"] for each in found["Now/Text"]]
    assert (texts[0], texts[2:]) == ("'0'", [f"'{n}'" for n in range(2, SAMPLES_MAX)])
    assert len(texts[1].encode()) <= TEXT_BYTES_MAX
    assert texts[1].startswith("'äää")
    first = found["Now/Text"][0]
    assert first["windows"] == ["1970-01-01T00:00:00Z to 1970-01-01T00:01:40Z"]
    assert first["time"] == 99_999_999
    assert first["pane"] == "on time, number 0, first, last"


def test_all_outputs_of_a_stateful_dofn() -> None:
    class Both(beam.PTransform):
        def expand(self, pairs: Any) -> Any:
            both = pairs | "Number" >> beam.ParDo(Numbered()).with_outputs("odd", main="even")
            _ = both.odd | "Odd" >> beam.Map(lambda pair: Mute())
            return both.even | "Even" >> beam.Map(lambda n: n)

    found, _ = samples_of(10, "Now" >> Both())
    assert [each["value"] for each in found["Now/Even"]] == ["0", "2", "4", "6", "8"]
    assert found["Now/Odd"][0]["value"].startswith("<Mute instance")
    tags = {name.rpartition(".")[2]: of[0]["value"] for name, of in found.items() if name.startswith("Now/Number/")}
    assert tags == {"None": "0", "odd": "(0, 1)"}
    assert found["Now/Even"][0]["pane"] == ""


def test_stage_without_sampler_takes_none() -> None:
    found, values = samples_of(20, "Now" >> Grouped(), sampled=False)
    assert found == {}
    assert len(values) == 20


def test_failure_names_its_element() -> None:
    errors: list[Exception] = []

    def run(shard: Shard, arrived: list[Any]) -> None:
        shard.stage.close()
        shard.stage = shard.opened(sampled=True)
        try:
            shard.run(MicroBatch([(key, [one]) for key, one in arrived], MAX_TIMESTAMP))
        except Exception as e:
            errors.append(e)
            shard.stage.abandon()
            shard.stage = shard.opened()

    with InMicroBatches(run) as p:
        pairs = p | beam.Create([(0, 1)]) | beam.GroupByKey()
        _ = pairs | "Divide" >> beam.MapTuple(lambda key, values: sum(values) / key) | Collect()
    record = failure_record(errors[0], "")
    assert record is not None
    assert record["transform"] == "Divide"
    assert record["value"] == "(0, [1])"
    assert record["error"] == "ZeroDivisionError: division by zero"
    assert failure_record(MemoryError(), "Divide") is None


def test_texts_are_cut_at_whole_characters() -> None:
    assert cut("a" * TEXT_BYTES_MAX) == "a" * TEXT_BYTES_MAX
    for text in ("a" * (TEXT_BYTES_MAX + 1), "aä" * TEXT_BYTES_MAX, "\ud800" * TEXT_BYTES_MAX):
        short = cut(text)
        assert TEXT_BYTES_MAX - 4 <= len(short.encode()) <= TEXT_BYTES_MAX
        assert short.endswith("(cut)")
