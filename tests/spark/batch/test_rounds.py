"""Rounds of splittable stages: their files, attempts and due times, many rounds, and lost executors."""

from __future__ import annotations

import logging
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.utils.timestamp import Duration

from arcbeam import ArcbeamRunner
from arcbeam.harness.operations.taskcontext import TaskSettings
from arcbeam.model.plan import Stage
from arcbeam.model.rows import REPORT, RESIDUAL, BundleReport, Row, RowFile
from arcbeam.spark.batch import rounds
from arcbeam.spark.batch.rounds import ReadRows, Rounds, RoundTask, grouped
from arcbeam.spark.session.java import require_java
from arcbeam.spark.session.versions import Versions
from arcbeam.spark.tasks import failure
from arcbeam.spark.tasks.task import StageTask, arrow
from arcbeam.store.blobs.errors import LostFileError
from arcbeam.store.jobtemp.location import JobLocation
from tests.offsets import UpTo
from tests.spark.batch.distributed import DISTRIBUTED


def _batch(*rows: Row) -> pa.RecordBatch:
    (batch,) = arrow(rows)
    return batch


def _rows(batches: Any) -> list[Row]:
    return [Row(*list(row.values())[:4]) for batch in batches for row in batch.to_pylist()]


@pytest.fixture
def task(tmp_path: Path) -> StageTask:
    stage = Stage("s1", "Split", (), b"", 0, (3, 4), splittable=True)
    return StageTask("job", stage, TaskSettings(), JobLocation(str(tmp_path / "job")), Versions.here())


def _attempt(task: StageTask, monkeypatch: pytest.MonkeyPatch, *batches: pa.RecordBatch) -> BundleReport:
    """Run an attempt whose stage outputs these batches; return its report."""
    monkeypatch.setattr(StageTask, "__call__", lambda self, _: iter_of(*batches))
    upstream = BundleReport("s0", 0).to_row()
    (report,) = (
        report
        for row in _rows(RoundTask(task)(iter(())))
        if (report := BundleReport.from_blob(row.blob)).stage != BundleReport.from_blob(upstream.blob).stage
    )
    return report


def iter_of(*batches: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    yield from batches


def _read(location: JobLocation, *files: RowFile) -> list[Row]:
    groups = (tuple(file.path for file in files),)
    return _rows(ReadRows(location, groups)(iter([pa.RecordBatch.from_pydict({"id": [0]})])))


def test_rows_go_to_files_and_reports_are_output(task: StageTask, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, c = Row(3, 0, 7, b"a"), Row(4, 1, 0, b"b" * 100_000), Row(3, 1, 2, b"")
    rest = Row(RESIDUAL, 1, 0, b"rest")
    own = BundleReport("s1", 0, residuals=1).to_row()
    report = _attempt(task, monkeypatch, _batch(a, b), _batch(c, rest), _batch(BundleReport("s0", 0).to_row(), own))
    assert report.residuals == 1
    files = {file.channel: file for file in report.row_files}
    assert {channel: _read(task.location, file) for channel, file in files.items()} == {
        3: [a, c],
        4: [b],
        RESIDUAL: [rest],
    }
    assert all(len(task.location.get_bytes(file.path)) == file.size for file in report.row_files)


def test_failed_attempt_publishes_nothing(task: StageTask, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(self: StageTask, _: Any) -> Iterator[pa.RecordBatch]:
        yield _batch(Row(3, 0, 7, b"a"))
        raise RuntimeError("the worker is ill")

    monkeypatch.setattr(StageTask, "__call__", failing)
    with pytest.raises(RuntimeError, match="ill"):
        list(RoundTask(task)(iter(())))
    assert task.location.list() == []


def test_finalization_waits_for_the_report(task: StageTask, monkeypatch: pytest.MonkeyPatch) -> None:
    finalized = []

    def finalizing(self: StageTask, _: Any) -> Iterator[pa.RecordBatch]:
        yield _batch(Row(3, 0, 7, b"a"))
        yield _batch(BundleReport("s1", 0).to_row())
        finalized.append(task.location.list("rows/"))

    monkeypatch.setattr(StageTask, "__call__", finalizing)
    out = RoundTask(task)(iter(()))
    assert next(out).column(0).to_pylist() == [REPORT]
    assert not finalized
    assert list(out) == []
    assert len(finalized[0]) == 1, "the files must exist by then"


def test_lost_file_is_recorded(tmp_path: Path) -> None:
    location = JobLocation(str(tmp_path))
    with pytest.raises(failure.TaskFailedError, match="'rows/s1/gone'"):
        _read(location, RowFile(3, "rows/s1/gone", 10))
    assert isinstance(failure.recorded(location), LostFileError), "it must not be retried"


def test_files_are_grouped_by_size() -> None:
    files = [RowFile(3, f"f{i}", size) for i, size in enumerate([10, 90, 30, 50, 20])]
    assert grouped(files, 2) == (("f1", "f0"), ("f3", "f2", "f4"))
    assert grouped(files[:2], 4) == (("f1",), ("f0",))
    assert grouped([], 4) == ()


@pytest.mark.contract("BAT-04")
def test_only_the_reported_attempt_counts(spark: Any, task: StageTask, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two attempts of a task end at different points; all files of the one that reported count."""
    running = Rounds(spark, task.location, 2)
    running.add(task, spark.range(1))
    own = BundleReport("s1", 0, residuals=1).to_row()
    _attempt(task, monkeypatch, _batch(Row(3, 0, 0, b"1"), Row(RESIDUAL, 0, 0, b"23")), _batch(own))
    second = _attempt(task, monkeypatch, _batch(Row(3, 0, 0, b"12"), Row(RESIDUAL, 0, 0, b"3")), _batch(own))
    running.begin()
    assert running.end([BundleReport("s0", 0), second]) == set()
    source = running._running["s1"].source
    for _ in range(2):  # Spark may compute it several times
        assert [bytes(row.blob) for row in source.collect()] == [b"3"]
    third = _attempt(task, monkeypatch, _batch(Row(3, 1, 0, b"3")), _batch(BundleReport("s1", 0).to_row()))
    running.begin()
    assert running.end([third]) == {"s1"}
    assert not running.stages
    for _ in range(2):
        assert sorted(bytes(row.blob) for row in running.output("s1", 3).collect()) == [b"12", b"3"]
    assert running.output("s1", 4).collect() == []


def test_rounds_start_when_they_are_due(spark: Any, task: StageTask, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(rounds.time, "time", lambda: now)
    running = Rounds(spark, task.location, 2)
    running.add(task, spark.range(1))
    assert running.wait() == 0
    assert len(running.begin()) == 1
    left = [RowFile(RESIDUAL, "rows/s1/x.residuals", 10)]
    running.end([BundleReport("s1", i, residuals=1, row_files=left, next_due=1000.0 + i) for i in (3, 5)])
    assert running.wait() == 3
    assert running.begin() == []
    now = 1003.0
    assert running.wait() == 0
    assert len(running.begin()) == 1
    running.end(
        [BundleReport("s1", 0, residuals=1, row_files=left), BundleReport("s1", 1, row_files=left, next_due=9e9)]
    )
    assert running.wait() == 0, "a part may start immediately"


def test_plans_do_not_grow_with_rounds(spark: Any, task: StageTask, capsys: pytest.CaptureFixture[str]) -> None:
    def size(frame: Any) -> int:
        frame.explain()
        return len(re.sub(r"\d+", "0", capsys.readouterr().out))

    running = Rounds(spark, task.location, 2)
    running.add(task, spark.range(1))
    sizes = []
    for number in range(4):
        (frame,) = running.begin()
        sizes.append(size(frame))
        files = [RowFile(channel, f"rows/s1/{number}.{channel}", 10) for channel in (3, RESIDUAL)]
        running.end([BundleReport("s1", 0, residuals=1, row_files=files)])
    assert len(set(sizes[1:])) == 1
    assert size(running.output("s1", 3)) < sizes[1]


class OneByOne(beam.DoFn):
    """Defers the rest after every number."""

    def __init__(self, delay: float = 0.0) -> None:
        self._delay = delay

    def process(self, element: int, tracker: Any = beam.DoFn.RestrictionParam(UpTo())) -> Iterator[Any]:
        at = tracker.current_restriction().start
        if tracker.try_claim(at):
            yield element, at
            tracker.defer_remainder(Duration(self._delay) if self._delay else None)


def _expected(element: int) -> list[Any]:
    return [(element, at) for at in range(element)]


class RoundsLog(logging.Handler):
    """Records when rounds ended."""

    def __init__(self) -> None:
        super().__init__()
        self.at: list[float] = []
        self.jobs = 0

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if " leaves " in text:
            self.at.append(record.created)
        if found := re.search(r"'spark_jobs': (\d+)", text):
            self.jobs = int(found[1])


@pytest.fixture
def rounds_log() -> Iterator[RoundsLog]:
    log, handler = logging.getLogger("arcbeam"), RoundsLog()
    level = log.level
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    yield handler
    log.removeHandler(handler)
    log.setLevel(level)


def _pipeline(*arguments: str) -> beam.Pipeline:
    return beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions([DISTRIBUTED, *arguments]))


@pytest.mark.long
@pytest.mark.contract("SDF-05")
@pytest.mark.usefixtures("spark")
def test_60_rounds_take_linear_time(rounds_log: RoundsLog) -> None:
    with _pipeline("--sdf_round_seconds=0") as p:
        assert_that(p | beam.Create([60]) | beam.ParDo(OneByOne()), equal_to(_expected(60)))
    ended = time.time()
    assert len(rounds_log.at) >= 59
    seconds = [later - earlier for earlier, later in zip(rounds_log.at, rounds_log.at[1:], strict=False)]
    # Lower quartiles, because the machine may be busy.
    first, *_ = statistics.quantiles(seconds[5:25])
    last, *_ = statistics.quantiles(seconds[-20:])
    assert last < 1.5 * first, f"later rounds are slower: {seconds}"
    assert ended - rounds_log.at[-1] < 30 * first, "reading the output of all rounds must not be slower"


@pytest.mark.contract("SDF-12")
@pytest.mark.usefixtures("spark")
def test_independent_splittable_stages_share_their_rounds(rounds_log: RoundsLog) -> None:
    with _pipeline("--sdf_round_seconds=0") as p:
        first = p | "1" >> beam.Create([6]) | "First" >> beam.ParDo(OneByOne())
        second = p | "2" >> beam.Create([8]) | "Second" >> beam.ParDo(OneByOne(0.01))
        assert_that((first, second) | beam.Flatten(), equal_to(_expected(6) + _expected(8)))
    assert rounds_log.jobs <= 8 + 3


@pytest.mark.contract("SDF-12", "BAT-02")
@pytest.mark.usefixtures("spark")
def test_output_of_rounds_for_consumers_of_all_kinds() -> None:
    with _pipeline("--sdf_round_seconds=0") as p:
        numbers = p | "N" >> beam.Create([3]) | "UpTo" >> beam.ParDo(OneByOne())
        more = p | "M" >> beam.Create([2]) | "More" >> beam.ParDo(OneByOne())
        both = (numbers, more) | beam.Flatten()
        one = p | beam.Create([1])
        listed = one | "List" >> beam.Map(lambda _, found: sorted(found), beam.pvalue.AsList(both))
        mapped = one | "Dict" >> beam.Map(
            lambda _, found: [sorted(found[3]), sorted(found[2])], beam.pvalue.AsMultiMap(both)
        )
        counted = both | beam.combiners.Count.PerKey()
        assert_that(listed, equal_to([sorted(_expected(3) + _expected(2))]), label="list")
        assert_that(mapped, equal_to([[[0, 1, 2], [0, 1]]]), label="dict")
        assert_that(counted, equal_to([(3, 3), (2, 2)]), label="count")
        assert_that(both, equal_to(_expected(3) + _expected(2)), label="both")


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.contract("BAT-04", "SDF-12")
def test_executor_lost_between_rounds_changes_nothing(tmp_path: Path) -> None:
    require_java()
    script = Path(__file__).with_name("lost_executor.py")
    done = subprocess.run([sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
