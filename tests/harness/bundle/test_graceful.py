"""DoFns that implement `GracefulShutdown`, at all places of a stage and in all operations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.pvalue import TaggedOutput
from apache_beam.transforms import userstate
from apache_beam.transforms.window import FixedWindows, GlobalWindow, IntervalWindow, TimestampedValue
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue

import arcbeam
from arcbeam.errors import ArcbeamError, UserCodeError
from arcbeam.harness.batch.batchstage import BoundedStage
from arcbeam.harness.bundle.graceful import offers
from tests.harness.batch.splittables import Range
from tests.harness.drive import Collect, Driven

CALLS: list[str] = []


class Ends(beam.DoFn, arcbeam.GracefulShutdown):
    """Returns given outputs at the end."""

    def __init__(self, *at_end: Any, name: str = "it") -> None:
        self._at_end, self._name = at_end, name

    def start_bundle(self) -> None:
        CALLS.append(f"{self._name} starts")

    def finish_bundle(self) -> None:
        CALLS.append(f"{self._name} finishes")

    def process(self, element: Any) -> Iterator[Any]:
        yield element

    def prepare_to_shutdown(self) -> Iterable[Any] | None:
        CALLS.append(f"{self._name} prepares")
        return self._at_end

    def shutdown(self) -> None:
        CALLS.append(f"{self._name} shuts down")


class Plain(Ends):
    start_bundle, finish_bundle = beam.DoFn.start_bundle, beam.DoFn.finish_bundle


class Windowed(Ends):
    def process(self, element: Any, window: Any = beam.DoFn.WindowParam) -> Iterator[Any]:
        yield element


class Batches(Ends):
    def process_batch(self, batch: list[Any]) -> Iterator[list[Any]]:
        yield batch

    def get_input_batch_type(self, input_element_type: Any) -> Any:
        return list[int]

    def get_output_batch_type(self, input_element_type: Any) -> Any:
        return list[int]


class Counting(Ends):
    SEEN = userstate.CombiningValueStateSpec("seen", sum)

    def process(self, element: Any, seen: Any = beam.DoFn.StateParam(SEEN)) -> Iterator[Any]:
        seen.add(1)
        yield element


class OnlyReleases(beam.DoFn, arcbeam.GracefulShutdown):
    def process(self, element: Any) -> Iterator[Any]:
        yield element

    def shutdown(self) -> None:
        CALLS.append("released")


@pytest.fixture(autouse=True)
def _nothing_called() -> None:
    CALLS.clear()


@pytest.mark.contract("END-05")
@pytest.mark.parametrize("kind", [Ends, Plain, Windowed, Counting])
@pytest.mark.parametrize("value_chains", [True, False])
def test_final_outputs_are_processed_like_others(kind: type[Ends], value_chains: bool) -> None:
    stages: list[BoundedStage] = []
    with Driven(shards=1, value_chains=value_chains, prepare=stages.append) as p:
        made = p | beam.Create([("k", 1), ("k", 2)], reshuffle=False) | beam.Map(lambda x: x)
        made = made | "It" >> beam.ParDo(kind(("k", 10), ("k", 20)))
        _ = made | Collect("behind")
        _ = made | beam.CombinePerKey(sum) | Collect("summed")
    assert p.values("summed") == [("k", 33)]
    last = GlobalWindow().max_timestamp()
    assert sorted((value, time) for value, time, _ in p.windowed("behind"))[2:] == [
        (("k", 10), last),
        (("k", 20), last),
    ]
    assert {window for _, _, window in p.windowed("behind")} == {GlobalWindow()}
    assert CALLS.count("it prepares") == 1
    if kind is Ends:
        assert CALLS == ["it starts", "it prepares", "it finishes"]
    offered = [stage for stage in stages if stage.processor.graceful.steps]
    assert [stage.processor.graceful.steps for stage in offered] == [("It",)]
    assert [offers(stage.processor.stage) for stage in stages] == [stage in offered for stage in stages]
    assert [report.graceful for report in p.reports if report.graceful] == [("It",)]
    for _ in range(2):
        assert offered[0].processor.graceful.shut_down() == []
    assert CALLS[-1] == "it shuts down"
    assert CALLS.count("it shuts down") == 1


@pytest.mark.contract("END-05")
def test_splittable_and_batch_dofns_prepare() -> None:
    class Reads(Range, arcbeam.GracefulShutdown):
        def prepare_to_shutdown(self) -> Iterable[Any]:
            return [(3, 100)]

    for value_chains in (True, False):
        stages: list[BoundedStage] = []
        with Driven(shards=1, value_chains=value_chains, prepare=stages.append) as p:
            read = p | beam.Create([3], reshuffle=False) | beam.ParDo(Reads())
            read = read | beam.MapTuple(lambda _, at: at).with_output_types(int)
            _ = read | beam.ParDo(Batches(200)) | Collect()
        assert sorted(p.values()) == [0, 1, 2, 100, 200]
        assert [offers(stage.processor.stage) for stage in stages if stage.processor.graceful.steps] == [True]


@pytest.mark.contract("END-05")
def test_dofns_prepare_from_sources_to_sinks() -> None:
    class Doubles(Ends):
        def process(self, element: int) -> Iterator[int]:
            yield 2 * element

    stages: list[BoundedStage] = []
    with Driven(shards=1, prepare=stages.append) as p:
        first = p | beam.Create([1], reshuffle=False) | "1" >> beam.ParDo(Doubles(3, name="first"))
        _ = first | "2" >> beam.ParDo(Doubles(5, name="second")) | Collect()
    assert sorted(p.values()) == [4, 5, 6]
    assert [call for call in CALLS if "prepares" in call] == ["first prepares", "second prepares"]
    for stage in stages:
        assert stage.processor.graceful.shut_down() == []
    assert CALLS[-2:] == ["first shuts down", "second shuts down"]


@pytest.mark.contract("END-05")
def test_outputs_with_tags_and_windows() -> None:
    at = Timestamp(7)
    ends = Ends(
        TaggedOutput("other", WindowedValue("o", at, (IntervalWindow(0, 10),))),
        WindowedValue("m", at, (IntervalWindow(0, 10),)),
    )
    with Driven(shards=1) as p:
        timed = p | beam.Create([1], reshuffle=False) | beam.Map(lambda n: TimestampedValue(str(n), n))
        made = timed | beam.WindowInto(FixedWindows(10)) | beam.ParDo(ends).with_outputs("other", main="main")
        _ = made.main | "main" >> Collect("main")
        _ = made.other | "other" >> Collect("other")
    assert list(p.values("main")) == ["1", "m"]
    assert p.windowed("other") == [("o", at, IntervalWindow(0, 10))]


@pytest.mark.contract("END-05")
@pytest.mark.parametrize(
    ("what", "expected"),
    [
        (5, r"Ends of 'It' .*\bint\b.*prepare_to_shutdown, .*global window"),
        (TaggedOutput("there", 5), r"Ends of 'It' .*'there'.*prepare_to_shutdown"),
    ],
)
def test_invalid_final_output_is_refused(what: Any, expected: str) -> None:
    p = Driven(shards=1)
    windowed = p | beam.Create([1], reshuffle=False) | beam.WindowInto(FixedWindows(10))
    _ = windowed | "It" >> beam.ParDo(Ends(what)) | Collect()
    with pytest.raises(UserCodeError, match=expected):
        p.run()


@pytest.mark.contract("END-05")
def test_errors_of_preparation_and_shutdown_name_transform() -> None:
    class Raises(Ends):
        def prepare_to_shutdown(self) -> Iterator[Any]:
            yield 1
            raise ValueError("not yet")

        def shutdown(self) -> None:
            raise OSError("gone")

    stages: list[BoundedStage] = []
    p = Driven(shards=1, prepare=stages.append)
    _ = p | beam.Create([1], reshuffle=False) | "It" >> beam.ParDo(Raises()) | Collect()
    with pytest.raises(UserCodeError, match="ValueError: not yet") as raised:
        p.run()
    assert raised.value.step == "It"
    assert stages[-1].processor.graceful.shut_down() == ["Raises of 'It' has raised OSError: gone"]


@pytest.mark.contract("END-05")
def test_dofn_with_only_shutdown_prepares_nothing() -> None:
    stages: list[BoundedStage] = []
    with Driven(shards=1, prepare=stages.append) as p:
        _ = p | beam.Create([1], reshuffle=False) | beam.ParDo(OnlyReleases()) | Collect()
    graceful = next(stage.processor.graceful for stage in stages if stage.processor.graceful.steps)
    assert not graceful.prepares
    assert graceful.shut_down() == []
    assert CALLS == ["released"]


@pytest.mark.contract("END-05")
def test_dofn_that_sdk_has_wrapped() -> None:
    with Driven(shards=1) as p:
        good, _bad = p | beam.Create([1], reshuffle=False) | beam.ParDo(Ends(5)).with_exception_handling()
        _ = good | Collect()
    assert sorted(p.values()) == [1, 5]
    p = Driven(shards=1)
    elsewhere = beam.ParDo(Ends(5)).with_exception_handling(use_subprocess=True)
    good, _bad = p | beam.Create([1], reshuffle=False) | elsewhere
    _ = good | Collect()
    with pytest.raises(ArcbeamError, match=r"Ends .*GracefulShutdown.*process of its own"):
        p.run()
