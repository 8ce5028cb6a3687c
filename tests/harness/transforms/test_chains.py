"""Several transforms in one loop: all reports about each are the same as without the loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.metrics import Metrics
from apache_beam.metrics import monitoring_infos as mi
from apache_beam.portability.api import metrics_pb2
from apache_beam.pvalue import TaggedOutput
from apache_beam.runners.worker import statesampler
from apache_beam.transforms.window import TimestampedValue

from arcbeam.harness.batch.batchstage import BoundedStage
from arcbeam.harness.operations.blockoperation import PIECE
from arcbeam.harness.transforms.chains import Chain
from arcbeam.harness.transforms.values import ValueOperation
from tests.harness.drive import Collect, Driven
from tests.harness.transforms.comparing import same

SIZE = 3000


class Loops:
    """Counts the elements that each chain processes, by the names of its transforms."""

    def __init__(self) -> None:
        self.taken: dict[str, int] = {}

    def watch(self, stage: BoundedStage) -> None:
        """Record what the chains of a stage process."""
        for op in stage.processor.sdk.ops.values():
            if isinstance(op, ValueOperation) and op.chain is not None:
                self._watch(op.chain)

    def _watch(self, chain: Any) -> None:
        run, names = chain.run, " ".join(op.name_context.step_name for op in chain._members)

        def noted(block: Any) -> None:
            self.taken[names] = self.taken.get(names, 0) + len(block)
            run(block)

        chain.run = noted


@pytest.fixture
def loops() -> Loops:
    return Loops()


def upto(count: int) -> range:
    return range(count)


def numbers(p: Any) -> Any:
    return p | beam.Create([SIZE], reshuffle=False) | "numbers" >> beam.FlatMap(upto).with_output_types(int)


def run(seen: Loops, build: Callable[[Any], Any], **settings: Any) -> Driven:
    with Driven(shards=1, prepare=seen.watch, **settings) as p:
        build(p)
    return p


def test_consecutive_transforms_are_one_loop(loops: Loops) -> None:
    def build(p: Any) -> None:
        made = numbers(p) | "a" >> beam.Map(lambda x: x + 1) | "b" >> beam.Filter(lambda x: x % 3)
        made | "c" >> beam.Map(lambda x: (x, x)) | "d" >> beam.MapTuple(lambda x, y: x + y) | Collect()

    assert sorted(run(loops, build).values()) == sorted(2 * x for x in range(1, SIZE + 1) if x % 3)
    assert list(loops.taken) == ["a b c d"]
    assert loops.taken["a b c d"] > SIZE / 2


def test_loop_ends_at_flat_transform(loops: Loops) -> None:
    def build(p: Any) -> None:
        made = numbers(p) | "a" >> beam.Map(lambda x: x % 5) | "b" >> beam.FlatMap(upto)
        made | "c" >> beam.Map(lambda x: x) | "d" >> beam.Map(str) | Collect()

    assert len(run(loops, build).values()) == SIZE * 2
    assert set(loops.taken) == {"a b", "c d"}


def test_loop_ends_before_two_consumers(loops: Loops) -> None:
    def build(p: Any) -> None:
        made = numbers(p) | "a" >> beam.Map(lambda x: x) | "b" >> beam.Map(lambda x: x)
        for name in "cd":
            made | name >> beam.Map(lambda x: x) | Collect(name)

    p = run(loops, build)
    assert p.values("c") == p.values("d") == list(range(SIZE))
    assert set(loops.taken) == {"a b"}


def test_loop_gets_constants_and_side_inputs(loops: Loops) -> None:
    def build(p: Any) -> None:
        side = p | "side" >> beam.Create([1, 2, 3], reshuffle=False)
        made = numbers(p) | "a" >> beam.Map(lambda x, y, z: x + y + z, 10, z=20)
        made = made | "b" >> beam.Filter(lambda x, all: x % 3 in set(all), beam.pvalue.AsList(side))
        made | "c" >> beam.Map(lambda x, **more: (x, more), **{"not a name": 1}) | Collect()

    expected = [(x, {"not a name": 1}) for x in range(30, SIZE + 30) if x % 3 in {1, 2}]
    assert run(loops, build).values() == expected
    assert any(names.startswith("a b") for names in loops.taken)


@pytest.mark.parametrize("switch", ["value_chains", "loops"])
def test_loops_can_be_switched_off(loops: Loops, switch: str) -> None:
    run(loops, lambda p: numbers(p) | beam.Map(str) | beam.Map(len) | Collect(), **{switch: False})
    assert not loops.taken


@pytest.mark.contract("BAT-04")
@pytest.mark.parametrize("bad", ["a", "b", "c", "d"])
def test_error_names_transform_that_raised_it(bad: str) -> None:
    def fails(name: str) -> Callable[[Any], Any]:
        def call(x: Any) -> Any:
            if name == bad and x == 2001:
                raise ValueError(f"not {x}")
            return x

        return call

    def flat(x: Any) -> Iterator[Any]:
        yield fails("d")(x)

    def build(p: Any) -> None:
        made = numbers(p) | "a" >> beam.Map(fails("a")) | "b" >> beam.Filter(fails("b"))
        made | "c" >> beam.Map(fails("c")) | "d" >> beam.FlatMap(flat) | Collect()

    assert same(build, shards=1).error == (ValueError, f"not 2001 [while running '{bad}']")


@pytest.mark.contract("API-06")
def test_metrics_belong_to_their_transform() -> None:
    def counting(name: str, every: int) -> Callable[[int], int]:
        def call(x: int) -> int:
            if x % every == 0:
                Metrics.counter("here", "seen").inc()
                Metrics.distribution("here", name).update(x)
            return x

        return call

    def build(p: Any) -> None:
        made = numbers(p) | "a" >> beam.Map(counting("a", 7)) | "b" >> beam.Filter(lambda x: x % 5)
        made | "c" >> beam.Map(counting("c", 11)) | "d" >> beam.FlatMap(lambda x: [counting("d", 13)(x)]) | Collect()

    metrics = same(build, shards=1).metrics
    seen = {
        dict(labels)["PTRANSFORM"] for (urn, labels), _ in metrics.items() if urn.startswith("beam:metric:user:sum")
    }
    assert len(seen) == 3


@pytest.mark.parametrize("where", [17, 1000, 2500])
def test_special_output_leaves_loop(where: int) -> None:
    def special(x: int) -> Any:
        if x == where:
            return TimestampedValue(x, 7)
        return TaggedOutput("lost", x) if x == where + 100 else x

    def build(p: Any) -> None:
        made = numbers(p) | "a" >> beam.Map(lambda x: x) | "b" >> beam.Map(special)
        made | "c" >> beam.Map(lambda x: x) | "d" >> beam.Filter(lambda x: x % 2 or x > 20) | Collect()

    outcome = same(build, shards=1)
    assert outcome.error is None
    assert len(outcome.values()) == SIZE - 11 - 1


_steps: list[tuple[str, str]] = []


def note_step(name: str) -> None:
    tracker: Any = statesampler.get_current_tracker()
    _steps.append((name, tracker.current_state().name_context.step_name))


def test_sampler_reports_running_transform() -> None:
    def noting(name: str) -> Callable[[int], int]:
        def call(x: int) -> int:
            note_step(name)
            return x

        return call

    def build(p: Any) -> None:
        numbers(p) | "a" >> beam.Map(noting("a")) | "b" >> beam.Map(noting("b")) | Collect()

    _steps.clear()
    with Driven(shards=1) as p:
        build(p)
    assert len(_steps) == 2 * SIZE
    assert all(own == reported for own, reported in _steps)


def test_time_of_loop_is_divided_among_transforms() -> None:
    def busy(x: int) -> int:
        end = time.perf_counter() + 0.0001
        while time.perf_counter() < end:
            pass
        return x

    with Driven(shards=1) as p:
        numbers(p) | "a" >> beam.Map(lambda x: x) | "b" >> beam.Map(busy) | Collect()
    spent: dict[str, int] = {}
    infos = [metrics_pb2.MonitoringInfo.FromString(data) for report in p.reports for data in report.metrics]
    for info in infos:
        if info.urn == mi.TOTAL_MSECS_URN:
            name = info.labels["PTRANSFORM"]
            spent[name] = spent.get(name, 0) + mi.extract_counter_value(info)
    assert sum(spent.values()) >= 200


@pytest.mark.contract("BAT-01")
@pytest.mark.parametrize("last", [beam.Map(bytes), beam.FlatMap(lambda size: (bytes(size) for _ in range(2)))])
def test_large_outputs_do_not_pile_up(last: Any) -> None:
    lengths: list[int] = []

    class Watching(ValueOperation):
        def put_out(self, block: Any) -> None:
            lengths.append(sum(map(len, block.values)))
            super().put_out(block)

    def prepare(stage: BoundedStage) -> None:
        for op in stage.processor.sdk.ops.values():
            if isinstance(op, ValueOperation) and op.name_context.step_name == "last":
                op.__class__ = Watching

    with Driven(shards=1, prepare=prepare) as p:
        made = p | beam.Create([400], reshuffle=False) | "n" >> beam.FlatMap(upto) | "a" >> beam.Map(lambda x: 1 << 20)
        made | "last" >> last.with_output_types(bytes) | beam.Map(len) | Collect()
    assert sum(p.values()) >> 20 in (400, 800)
    assert max(lengths) <= 5 << 20


def test_empty_filter_does_not_shrink_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    run = Chain._run

    def noted(chain: Chain, values: list[Any]) -> int:
        rows.append(len(values))
        return run(chain, values)

    monkeypatch.setattr(Chain, "_run", noted)
    with Driven(shards=1) as p:
        made = p | beam.Create([20_000], reshuffle=False) | "n" >> beam.FlatMap(upto) | "a" >> beam.Map(lambda x: x + 1)
        made | "last" >> beam.Filter(lambda x: x > 19_990) | beam.Reshuffle() | Collect()
    assert sorted(p.values()) == list(range(19_991, 20_001))
    assert sum(rows) > 15_000
    assert len(rows) < 15_000 / PIECE * 3
