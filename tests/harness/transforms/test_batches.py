"""DoFns of batches: equal results whether batches stay whole or are processed by the SDK."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple, Optional

import apache_beam as beam
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from apache_beam.metrics import Metrics
from apache_beam.pvalue import AsSingleton
from apache_beam.transforms.window import FixedWindows, SlidingWindows, TimestampedValue
from apache_beam.typehints.batch import BatchConverter, N, NumpyArray
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from arcbeam.harness.batch.batchstage import BoundedStage
from arcbeam.harness.operations.taskcontext import TaskSettings
from arcbeam.harness.transforms.batches import BatchOperation
from arcbeam.harness.transforms.batchforms import batch_maker, exploder
from arcbeam.translate import ParsedPipeline, translate
from arcbeam.translate.proto import pipeline_proto
from tests.harness.drive import Collect, Driven
from tests.harness.transforms.comparing import Outcome, exact

# DoFns. Their annotations are not postponed, because the SDK needs types.


class Same(beam.DoFn):
    def infer_output_type(self, input_type: Any) -> Any:
        return input_type


class Arrays(Same):
    def process_batch(self, batch: np.ndarray) -> Iterator[np.ndarray]:
        Metrics.counter("batches", "elements").inc(len(batch))
        yield batch * 3 + 1


class Lists(Same):
    def process_batch(self, batch: list[np.int64]) -> Iterator[list[np.int64]]:
        yield [x + 1 for x in batch]
        yield []


class Tables(Same):
    def process_batch(self, batch: pa.Table) -> Iterator[pa.Table]:
        yield batch


class Frames(Same):
    def process_batch(self, batch: pd.DataFrame) -> Iterator[pd.DataFrame]:
        yield batch.assign(n=batch.n + 1)


class ToElements(Same):
    @beam.DoFn.yields_elements
    def process_batch(self, batch: np.ndarray) -> Iterator[np.int64]:
        for x in batch:
            if x % 5:
                yield TimestampedValue(x, int(x) % 7) if x % 3 == 0 else x

    def infer_output_type(self, input_type: Any) -> Any:
        return np.int64


class Both(Same):
    def process(self, element: np.int64) -> Iterator[np.int64]:
        yield element - np.int64(1)

    def process_batch(self, batch: np.ndarray) -> Iterator[np.ndarray]:
        yield batch - 1


class ToBatches(Same):
    @beam.DoFn.yields_batches
    def process(self, element: np.int64) -> Iterator[np.ndarray]:
        yield np.arange(element % 4, dtype=np.int64) + element

    def infer_output_type(self, input_type: Any) -> Any:
        return np.int64


class Looking(Same):
    def process_batch(
        self, batch: np.ndarray, when: Any = beam.DoFn.TimestampParam, window: Any = beam.DoFn.WindowParam
    ) -> Iterator[np.ndarray]:
        yield batch + when.micros // 1_000_000 % 5 + int(window.max_timestamp().micros % 11)


class Adds(Same):
    def process_batch(self, batch: np.ndarray, more: int) -> Iterator[np.ndarray]:
        yield batch + more


class Breaks(Same):
    def process_batch(self, batch: np.ndarray) -> Iterator[np.ndarray]:
        if (batch > 30).any():
            raise ValueError("too many")
        yield batch


class AtTheEnd(Same):
    def process_batch(self, batch: np.ndarray) -> Iterator[np.ndarray]:
        yield batch

    def finish_bundle(self) -> Any:
        yield beam.transforms.window.GlobalWindows.windowed_value(np.int64(-1))


def wide(value: int) -> np.int64:
    return np.int64(value)


# With and without batches.


def plan_of(p: Driven) -> Any:
    return translate(ParsedPipeline(pipeline_proto(p)), name=p.run_id)


def by_name(outcome: Outcome) -> Counter[Any]:
    """Return metrics. User metrics lack the transform: the SDK attributes those of a batch to the previous
    transform."""
    found: Counter[Any] = Counter()
    for (urn, labels), value in outcome.metrics.items():
        if urn.startswith("beam:metric:user:"):
            labels = tuple((key, text) for key, text in labels if key != "PTRANSFORM")
            value = beam.coders.VarIntCoder().decode(value)
        found[urn, labels] += value
    return found


def same(build: Callable[[Driven], Any], names: tuple[str, ...] = ("",), **more: Any) -> Outcome:
    p = Driven()
    build(p)
    plan = plan_of(p)
    off, on = (Outcome(p, plan, list(names), TaskSettings(batches=on, **more)) for on in (False, True))
    assert on.error == off.error
    assert on.seen == off.seen
    if on.error is None:
        assert by_name(on) == by_name(off)
        assert on.sampled.keys() == off.sampled.keys()
    return on


def same_value(value: Any) -> Any:
    return value


class Ends(beam.DoFn):
    """Reads only the value."""

    def process(self, element: Any) -> Any:
        yield element

    def finish_bundle(self) -> Any:
        yield beam.transforms.window.GlobalWindows.windowed_value(np.int64(-1))


class EndsLooking(Ends):
    def process(self, element: Any, when: Any = beam.DoFn.TimestampParam) -> Any:
        yield element


STEPS: dict[str, Callable[[Any, str], Any]] = {
    "arrays": lambda c, at: c | at >> beam.ParDo(Arrays()),
    # The SDK cannot make an array from a list's elements without an operation of elements in between.
    "lists": lambda c, at: (
        c | at >> beam.ParDo(Lists()) | f"{at} same" >> beam.Map(same_value).with_output_types(np.int64)
    ),
    "both": lambda c, at: c | at >> beam.ParDo(Both()),
    "to elements": lambda c, at: c | at >> beam.ParDo(ToElements()),
    "to batches": lambda c, at: c | at >> beam.ParDo(ToBatches()),
    "looking": lambda c, at: c | at >> beam.ParDo(Looking()),
    "breaks": lambda c, at: c | at >> beam.ParDo(Breaks()),
    "side": lambda c, at: c | at >> beam.ParDo(Adds(), AsSingleton(c.pipeline | f"{at} one" >> beam.Create([7]))),
    "map": lambda c, at: c | at >> beam.Map(lambda x: x + 1).with_output_types(np.int64),
    "filter": lambda c, at: c | at >> beam.Filter(lambda x: x % 4 != 1).with_output_types(np.int64),
    "look": lambda c, at: (
        c | at >> beam.Map(lambda x, w=beam.DoFn.WindowParam: x + w.end.micros % 3).with_output_types(np.int64)
    ),
    "times": lambda c, at: c | at >> beam.Map(lambda x: TimestampedValue(x, int(x) % 20)).with_output_types(np.int64),
    "fixed": lambda c, at: c | at >> beam.WindowInto(FixedWindows(5)),
    "sliding": lambda c, at: c | at >> beam.WindowInto(SlidingWindows(10, 5)),
    "exchange": lambda c, at: c | at >> beam.Reshuffle().with_output_types(np.int64),
    "flatten": lambda c, at: (
        (c, c | f"{at} beside" >> beam.ParDo(Arrays())) | at >> beam.Flatten().with_output_types(np.int64)
    ),
    "branch": lambda c, at: (c | f"{at} aside" >> beam.ParDo(Lists()) | Collect(at), c)[1],
}
"""The parts of a random pipeline; each takes and outputs numpy integers."""


@pytest.mark.contract("PLAN-05")
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.integers(0, 40), max_size=30),
    st.lists(st.sampled_from(sorted(STEPS)), max_size=6),
    st.sampled_from([500_000, 7, 1]),
    st.booleans(),
)
def test_batches_do_not_change_results(
    numbers: list[int], wanted: list[str], bundle_elements: int, chains: bool
) -> None:
    def build(p: Driven) -> None:
        found = p | beam.Create(numbers) | "wide" >> beam.Map(wide).with_output_types(np.int64)
        for place, step in enumerate(wanted):
            found = STEPS[step](found, str(place))
        found | Collect()

    branches = tuple(str(place) for place, step in enumerate(wanted) if step == "branch")
    same(build, ("", *branches), bundle_elements=bundle_elements, value_chains=chains)


class Item(NamedTuple):
    n: int
    name: Optional[str]  # noqa: UP045  # the SDK does not know the other form
    share: float


beam.coders.registry.register_coder(Item, beam.coders.RowCoder)


@pytest.mark.parametrize("fn", [Tables, Frames])
@pytest.mark.parametrize("exchange", [False, True])
def test_rows_in_tables_and_frames(fn: type[beam.DoFn], exchange: bool) -> None:
    items = [Item(n, None if n % 3 == 0 else f"name {n}", n / 7) for n in range(50)]

    def build(p: Driven) -> None:
        rows = p | beam.Create(items).with_output_types(Item)
        found = rows | "first" >> beam.ParDo(fn())
        if exchange:
            found |= beam.Reshuffle().with_output_types(Item)
        found | "then" >> beam.ParDo(fn()) | beam.Map(lambda x: tuple(x)) | Collect()

    assert len(same(build).values()) == 50


# The input of user code.


class Notes(Same):
    seen: ClassVar[list[Any]] = []

    def process_batch(self, batch: np.ndarray) -> Iterator[np.ndarray]:
        Notes.seen.append(batch)
        yield batch


def wide_numbers(p: Any, count: int) -> Any:
    return p | beam.Create(range(count), reshuffle=False) | beam.Map(wide).with_output_types(np.int64)


def test_batches_have_limited_size_and_stay_whole() -> None:
    Notes.seen = []
    with Driven(shards=1) as p:
        wide_numbers(p, 10_000) | "a" >> beam.ParDo(Notes()) | "b" >> beam.ParDo(Notes()) | Collect()
    assert sum(map(len, Notes.seen)) == 20_000
    assert max(map(len, Notes.seen)) <= 4096
    assert len(Notes.seen) < 16
    assert len({id(batch) for batch in Notes.seen}) == len(Notes.seen) // 2
    assert sorted(p.values()) == list(range(10_000))


def test_large_elements_make_small_batches() -> None:
    class Sizes(Same):
        def process_batch(self, batch: list[bytes]) -> Iterator[list[bytes]]:
            Notes.seen.append(len(batch))
            yield batch

    Notes.seen = []
    with Driven(shards=1) as p:
        large = p | beam.Create(range(30)) | beam.Map(lambda n: bytes(1 << 20)).with_output_types(bytes)
        large | beam.ParDo(Sizes()) | beam.Map(len) | Collect()
    assert sum(Notes.seen) == 30
    assert max(Notes.seen) <= 4
    assert p.values() == [1 << 20] * 30


def operations_of(build: Callable[[Driven], Any], **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def prepare(stage: BoundedStage) -> None:
        found.update({op.name_context.step_name: op for op in stage.processor.sdk.ops.values()})

    with Driven(prepare=prepare, **more) as p:
        build(p)
    return found


@pytest.mark.parametrize("chains", [True, False])
def test_dofns_with_our_operation(chains: bool) -> None:
    def build(p: Driven) -> None:
        found = wide_numbers(p, 3)
        found | "takes" >> beam.ParDo(Arrays()) | Collect("1")
        found | "makes" >> beam.ParDo(ToBatches()) | Collect("2")
        found | "both" >> beam.ParDo(Both()) | Collect("3")
        found | "neither" >> beam.Map(lambda x, w=beam.DoFn.WindowParam: x) | Collect("4")

    ours = {name for name, op in operations_of(build, value_chains=chains).items() if isinstance(op, BatchOperation)}
    assert ours == {"takes", "makes", "both"}
    assert not any(isinstance(op, BatchOperation) for op in operations_of(build, batches=False).values())


def test_metrics_belong_to_their_transform() -> None:
    p = Driven()
    wide_numbers(p, 5) | "here" >> beam.ParDo(Arrays()) | Collect()
    outcome = Outcome(p, plan_of(p), [""], TaskSettings())
    steps = [dict(labels)["PTRANSFORM"] for urn, labels in outcome.metrics if urn.startswith("beam:metric:user:")]
    assert len(steps) == 1
    assert "here" in steps[0]


class Tags(Same):
    """Has two outputs, so the SDK's operation is used."""

    def process_batch(self, batch: np.ndarray) -> Iterator[np.ndarray]:
        yield batch[batch % 2 == 0]
        yield beam.pvalue.TaggedOutput("odd", batch[batch % 2 == 1])


def test_consumer_of_sdk_that_takes_batches() -> None:
    def build(p: Driven) -> None:
        found = wide_numbers(p, 300) | "arrays" >> beam.ParDo(Arrays())
        found | "beside" >> beam.ParDo(Arrays()) | Collect("beside")
        found | "values" >> beam.Map(int) | Collect("values")
        tags = found | "tags" >> beam.ParDo(Tags()).with_outputs("odd", main="even")
        for tag in ("odd", "even"):
            wide_again = beam.Map(same_value).with_output_types(np.int64)
            tags[tag] | f"{tag} wide" >> wide_again | f"{tag} arrays" >> beam.ParDo(Arrays()) | Collect(tag)

    assert len(same(build, ("beside", "values", "odd", "even")).values("values")) == 300


def test_error_names_transform() -> None:
    with pytest.raises(ValueError, match=r"too many \[while running 'breaks'\]"), Driven() as p:
        wide_numbers(p, 40) | "before" >> beam.ParDo(Arrays()) | "breaks" >> beam.ParDo(Breaks()) | Collect()


@pytest.mark.parametrize("fn", [AtTheEnd, Ends, EndsLooking])
@pytest.mark.parametrize("batches", [True, False])
@pytest.mark.parametrize("chains", [True, False])
def test_outputs_at_bundle_end_are_kept(fn: type[beam.DoFn], batches: bool, chains: bool) -> None:
    with Driven(shards=1, batches=batches, value_chains=chains) as p:
        ends = wide_numbers(p, 5) | "ends" >> beam.ParDo(fn()).with_output_types(np.int64)
        ends | "more" >> beam.ParDo(Arrays()) | Collect()
        ends | "elements" >> beam.Map(int) | Collect("elements")
    assert sorted(p.values("elements")) == [-1, 0, 1, 2, 3, 4]
    assert sorted(p.values()) == [-2, 1, 4, 7, 10, 13]


@pytest.mark.parametrize("batches", [True, False])
def test_rebatching_warns(batches: bool) -> None:
    with Driven(batches=batches) as p:
        wide_numbers(p, 9) | "arrays" >> beam.ParDo(Arrays()) | "lists" >> beam.ParDo(Lists()) | Collect()
    assert sorted(p.values()) == [3 * n + 2 for n in range(9)]
    messages = [text for report in p.reports for name, text in report.warnings if "Inefficient" in name]
    assert messages
    assert all("lists" in text and "NumpyArray" in text and "List[<class 'numpy.int64'>]" in text for text in messages)


def test_lists_become_arrays() -> None:
    with Driven() as p:
        wide_numbers(p, 9) | "lists" >> beam.ParDo(Lists()) | "arrays" >> beam.ParDo(Arrays()) | Collect()
    assert sorted(p.values()) == [3 * (n + 1) + 1 for n in range(9)]


# Batches and elements.

CONVERTERS = [
    (np.int64, np.ndarray, [np.int64(1), np.int64(-5)]),
    (np.int64, np.ndarray, [1, 2**62]),
    (np.float32, np.ndarray, [np.float32(1.5), np.float32(2)]),
    (float, np.ndarray, [1.5, float("inf")]),
    (bool, np.ndarray, [True, False]),
    (np.bool_, np.ndarray, [np.True_, np.False_]),
    (int, np.ndarray, [1, True, 2.5]),
    (int, np.ndarray, [1, 2**63]),
    (int, np.ndarray, [2**63, 2**63 + 1]),
    (np.int64, NumpyArray[np.int64, (N,)], [np.int64(1)]),
    (NumpyArray[np.int64, (2,)], NumpyArray[np.int64, (N, 2)], [np.array([1, 2]), np.array([3, 4])]),
    (NumpyArray[np.int64, (2,)], NumpyArray[np.int64, (2, N)], [np.array([1, 2]), np.array([3, 4])]),
    (int, list[int], [1, 2]),
    (int, pa.Array, [1, 2]),
    (str, pd.Series, ["a", "b"]),
    (Item, pa.Table, [Item(1, None, 0.5), Item(2, "x", 1.5)]),
    (Item, pa.Table, [Item(1, None, 0.5), beam.Row(n=2, name="x", share=1.5)]),
    (Item, pa.Table, [beam.Row(share=1.5, name="x", n=2)] * 2),
    (Item, pd.DataFrame, [Item(1, None, 0.5), Item(2, "x", float("nan"))]),
    (Item, pd.DataFrame, [Item(1, "y", 0.5)]),
]


@pytest.mark.parametrize(("element", "batch", "values"), CONVERTERS)
def test_conversion_equals_that_of_sdk(element: Any, batch: Any, values: list[Any]) -> None:
    converter = BatchConverter.from_typehints(element_type=element, batch_type=batch)
    expected, made = converter.produce_batch(values), batch_maker(converter)(values)
    assert type(made) is type(expected)
    assert all(getattr(made, at, None) == getattr(expected, at, None) for at in ("dtype", "schema"))
    assert exact(list(converter.explode_batch(made))) == exact(list(converter.explode_batch(expected)))
    again = [value for part in exploder(converter)(expected) for value in part]
    assert exact(again) == exact(list(converter.explode_batch(expected)))
    assert [list(map(type, value)) for value in again if isinstance(value, tuple)] == [
        list(map(type, value)) for value in converter.explode_batch(expected) if isinstance(value, tuple)
    ]


@pytest.mark.parametrize("batch", [np.arange(10_000), list(range(10_000)), pa.table({"n": range(10_000)})])
def test_large_batch_becomes_limited_lists(batch: Any) -> None:
    kinds = {np.ndarray: (np.int64, np.ndarray), list: (int, list[int])}
    element, kind = kinds.get(type(batch), (NamedTuple("Numbers", [("n", int)]), pa.Table))
    converter = BatchConverter.from_typehints(element_type=element, batch_type=kind)
    parts = list(exploder(converter)(batch))
    assert max(map(len, parts)) <= 4096
    assert exact([v for part in parts for v in part]) == exact(list(converter.explode_batch(batch)))
