"""A stage whose user code is of a kind that neither the SDK's process nor an SDK worker knows."""

from __future__ import annotations

from types import FrameType
from typing import Any

import apache_beam as beam
from typing_extensions import override

from arcbeam.harness.streaming.stagecode import EmbeddedCode
from arcbeam.harness.streaming.stageparts import StageParts
from arcbeam.harness.streaming.streamingstage import StreamingStage
from arcbeam.model.rows import BundleReport
from arcbeam.model.timestamps import MAX_TIMESTAMP
from tests.harness.drive import Collect
from tests.harness.streaming.microbatches import InMicroBatches, MicroBatch, Shard


class OtherCode(EmbeddedCode):
    """User code that is named, sampled and given up in a way of its own."""

    def __init__(self, parts: StageParts) -> None:
        super().__init__(parts)
        self.calls: list[str] = []

    @override
    def running_step(self, frame: FrameType | None) -> str:
        return "elsewhere"

    @override
    def samples(self) -> list[dict[str, Any]]:
        return [{"output": "elsewhere"}]

    @override
    def abandon(self) -> None:
        self.calls.append("abandoned")


def test_stage_asks_its_code_and_releases_at_close() -> None:
    found: list[tuple[OtherCode, bool, BundleReport]] = []

    def run(shard: Shard, arrived: list[Any]) -> None:
        code = OtherCode(StageParts(shard.of, shard.settings))
        stage = StreamingStage(code, lambda: code.calls.append("released"))
        assert (stage.running_step(), stage.samples()) == ("elsewhere", [{"output": "elsewhere"}])
        shard.stage.close()
        shard.stage = stage
        shard.run(MicroBatch([(key, [one]) for key, one in arrived], MAX_TIMESTAMP))
        stage.abandon()
        found.append((code, stage.needs_teardown(), shard.reports[0]))

    with InMicroBatches(run) as p:
        _ = p | beam.Create([(0, 1)]) | beam.GroupByKey() | Collect()
    ((code, needs_teardown, report),) = found
    assert code.calls == ["abandoned", "released"]
    assert needs_teardown
    assert report.needs_teardown
