"""Reports of tasks as bytes."""

from __future__ import annotations

from dataclasses import replace

from arcbeam.engine.protocol.reports import Counts, StageReport, TaskReport
from arcbeam.engine.watermarks.clocks import Local, OutputTime
from arcbeam.engine.watermarks.holds import Hold, HolderKind
from arcbeam.model.files import FileKind, Shard, ShardFile, TaskFiles
from arcbeam.model.timestamps import Timestamp
from arcbeam.streaming.reportcodec import ReportReader, packed

_HOLD = Hold(Timestamp(9), HolderKind.TIMER, "t", key="k", about="a file")
_FILE = ShardFile("a", FileKind.DELTA, 1, 2, 3, 4, b"5", b"6", 7, 8)


def _report(*stages: StageReport) -> TaskReport:
    return TaskReport(1, 2, b"token", b"digest", stages, files=TaskFiles((Shard(1, 2, (_FILE,)),)))


def _stage(shard: int, input: int) -> StageReport:
    return StageReport("s", shard, Timestamp(input), Local(_HOLD, {"o": OutputTime(None, _HOLD)}))


def test_reader_returns_what_tasks_report() -> None:
    reader = ReportReader()
    for report in (_report(_stage(0, 1), _stage(1, 2)), _report(_stage(0, 5), replace(_stage(1, 6), leftover=True))):
        read = reader.read(packed(report))
        assert read == report
        assert read.stages[0].local.pending is not None
        assert read.stages[0].local.pending.about == "a file", "which equality ignores"


def test_idle_shards_are_reported_together() -> None:
    local = Local(None, {"o": OutputTime()})
    idle = [StageReport("s", shard, Timestamp(1), local) for shard in range(1000)]
    some = _report(_stage(3, 1), *idle, _stage(4, 2))
    assert len(packed(some)) < len(packed(_report(_stage(3, 1), idle[0], _stage(4, 2)))) + 10_000
    reader = ReportReader()
    assert reader.read(packed(some)) == some
    busy = _report(replace(idle[0], counts=Counts(3)), *idle[1:-1], idle[-1].at(Timestamp(2)))
    assert reader.read(packed(busy)) == busy


def test_rest_of_idle_shard_is_decoded_once() -> None:
    reader = ReportReader()
    before, after = (reader.read(packed(_report(_stage(0, time), _stage(1, 1)))) for time in (1, 2))
    assert after.stages[0].input == 2
    assert after.stages[0].local is before.stages[0].local
    busy = reader.read(packed(_report(replace(_stage(0, 2), counts=Counts(3)), _stage(1, 1))))
    assert busy.stages[0].counts.read == 3
    idle = reader.read(packed(_report(_stage(0, 2), _stage(1, 1))))
    assert idle.stages[0].counts == Counts(), "counters are of one micro-batch"
