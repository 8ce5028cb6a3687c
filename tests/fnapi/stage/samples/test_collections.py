"""Samples of a stage in an SDK worker: all of its collections, while they are requested, and at no other time."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.coders import Coder, VarIntCoder, registry
from apache_beam.transforms import window
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.windowed_value import WindowedValue
from typing_extensions import override

from arcbeam.engine.protocol.layout import StagePlacement
from arcbeam.engine.watermarks.stages import StageFlow
from arcbeam.fnapi.environments.workers import StageWorkers
from arcbeam.fnapi.stage.remotestage import RemoteCode, open_with_workers
from arcbeam.harness.operations.taskcontext import TaskSettings
from arcbeam.harness.streaming.streamingstage import StreamingStage
from arcbeam.model.plan import Stage
from arcbeam.model.rows import BundleReport
from arcbeam.model.timestamps import MIN_TIMESTAMP, Timestamp
from arcbeam.model.windows import GLOBAL_WINDOW, NO_PANE
from arcbeam.testing.views import MemoryView
from arcbeam.translate import ParsedPipeline, translate
from arcbeam.translate.proto import pipeline_proto
from tests.fnapi.stage.inworkers import external, worker_service
from tests.harness.drive import _ListOutbox

pytestmark = pytest.mark.contract("PAGE-15")


class Uneven:
    """A type with a coder of its own."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __repr__(self) -> str:
        return f"Uneven({self.n})"


class UnevenCoder(Coder):  # type: ignore[misc]  # Beam is untyped
    """Its values can only be decoded if they are not 4."""

    @override
    def encode(self, value: Any) -> bytes:
        return struct.pack(">i", value.n)

    @override
    def decode(self, encoded: bytes) -> Any:
        (n,) = struct.unpack(">i", encoded)
        if n == 4:
            raise ValueError("unknown")
        return Uneven(n)


@pytest.fixture(autouse=True)
def coder(monkeypatch: pytest.MonkeyPatch) -> None:
    for kept in ("_coders", "custom_types"):
        monkeypatch.setattr(registry, kept, getattr(registry, kept).copy())
    registry.register_coder(Uneven, UnevenCoder)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with worker_service() as address:
        yield address


def stages(address: str) -> list[Stage]:
    p = beam.Pipeline()
    numbers = p | beam.Impulse() | "Numbers" >> beam.FlatMap(lambda _: range(20)).with_output_types(int)
    timed = numbers | "Times" >> beam.Map(lambda n: window.TimestampedValue(n, n)).with_output_types(int)
    odd = timed | "Odd" >> beam.Map(Uneven).with_output_types(Uneven)
    _ = odd | "Pairs" >> beam.Map(lambda odd: (odd.n, odd)).with_output_types(tuple[int, Uneven])
    _ = odd | "Unused" >> beam.Map(lambda odd: None)
    texts = timed | "Texts" >> beam.Map(lambda n: ("ä", n)).with_output_types(tuple[str, int])
    windows = texts | beam.WindowInto(window.FixedWindows(10))
    parts = windows | "Parts" >> beam.Partition(lambda pair, count: pair[1] % count, 2)
    grouped = tuple(parts) | beam.Flatten() | "Group" >> beam.GroupByKey()
    _ = grouped | "Sums" >> beam.MapTuple(lambda key, values: sum(values))
    proto = pipeline_proto(p)
    for environment in proto.components.environments.values():
        environment.CopyFrom(external(address))
    return list(translate(ParsedPipeline(proto), bounded=False).stages)


def code_of(stage: StreamingStage) -> RemoteCode:
    assert isinstance(stage.code, RemoteCode)
    return stage.code


def run(stage: StreamingStage) -> tuple[BundleReport, bytes]:
    """Run a bundle with one element."""
    outbox, report = _ListOutbox(), BundleReport(stage.id, 0)
    stage.begin(outbox, 0, lambda channel: None, None, Timestamp(0))  # type: ignore[arg-type, return-value]
    runner = stage.runner(MemoryView(), StagePlacement(StageFlow("it", (), ("main",)), 1, 0))
    runner.process(b"", [(b"", MIN_TIMESTAMP, (GLOBAL_WINDOW,), NO_PANE)])
    runner.finish()
    stage.end(report, late=0, closed=0)
    return report, b"".join(row.blob for row in outbox.rows)


def test_all_collections_of_a_stage_are_sampled(address: str) -> None:
    of = next(stage for stage in stages(address) if stage.source is None)
    stage = open_with_workers(of, TaskSettings(shards=1, bulk_values=False), StageWorkers("job"))
    plain = run(stage)[0].elements_out
    assert stage.samples() == []
    code_of(stage).begin_samples()
    sampled = run(stage)[0].elements_out
    found = {each["output"]: each["elements"] for each in stage.samples()}
    code_of(stage).end_samples()
    again = run(stage)[0].elements_out
    stage.close()
    assert plain == sampled == again
    assert [each["value"] for each in found["Numbers"]] == ["0", "1", "2", "3", "4"]
    assert [each["time"] for each in found["Times"]] == [0, 1_000_000, 2_000_000, 3_000_000, 4_000_000]
    assert [each["value"] for each in found["Odd"]][:3] == ["Uneven(0)", "Uneven(1)", "Uneven(2)"]
    assert [each["value"] for each in found["Odd"]][4] == r"b'\x00\x00\x00\x04'"
    assert found["Pairs"][4]["value"] == r"(4, b'\x00\x00\x00\x04')", "what can be decoded is"
    assert found["Texts"][1]["value"] == "('ä', 1)"
    assert found["WindowInto(WindowIntoFn)"][0]["windows"] == ["1970-01-01T00:00:00Z to 1970-01-01T00:00:10Z"]
    assert list(found)[:3] == ["Impulse", "Numbers", "Times"]


class Counted(beam.DoFn):
    """Has state, so that its input is distributed by key."""

    SEEN = ReadModifyWriteStateSpec("seen", VarIntCoder())

    def process(self, element: tuple[int, int], seen: Any = beam.DoFn.StateParam(SEEN)) -> Iterator[int]:
        yield element[1]


def test_input_without_a_name_is_that_of_its_transform(address: str) -> None:
    p = beam.Pipeline()
    pairs = p | beam.Impulse() | beam.Map(lambda _: (1, 2)).with_output_types(tuple[int, int])
    _ = pairs | "Counted" >> beam.ParDo(Counted())
    proto = pipeline_proto(p)
    for environment in proto.components.environments.values():
        environment.CopyFrom(external(address))
    of = next(each for each in translate(ParsedPipeline(proto), bounded=False).stages if each.stateful)
    stage = open_with_workers(of, TaskSettings(shards=1, bulk_values=False), StageWorkers("job"))
    code_of(stage).begin_samples()
    outbox = _ListOutbox()
    stage.begin(outbox, 0, lambda channel: None, None, Timestamp(0))  # type: ignore[arg-type, return-value]
    runner = stage.runner(MemoryView(), StagePlacement(StageFlow("it", (), ("main",)), 1, 0))
    codec = stage.parts.codec
    elements = [(codec.encode(2) if codec.waits else 2, Timestamp(0), (GLOBAL_WINDOW,), NO_PANE)]
    runner.process(VarIntCoder().encode(1), elements)
    runner.finish()
    samples = stage.samples()
    stage.close()
    assert [each["output"] for each in samples] == ["input of Counted", "Counted"]
    assert samples[0]["elements"][0]["value"] == "(1, 2)"


def test_input_alone_does_not_answer(address: str) -> None:
    of = next(stage for stage in stages(address) if stage.source is None)
    stage = open_with_workers(of, TaskSettings(shards=1, bulk_values=False), StageWorkers("job"))
    code_of(stage).begin_samples()
    samples = code_of(stage)._samples
    assert samples is not None
    samples.input.show(WindowedValue(b"", 0, (GlobalWindow(),)))
    assert stage.samples() == [], "there will be outputs"
    run(stage)
    assert [each["output"] for each in stage.samples()][:2] == ["Impulse", "Numbers"]
    stage.close()
