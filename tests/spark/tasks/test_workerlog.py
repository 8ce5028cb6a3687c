"""What tasks log: a few lines of each stage reach the driver, also from attempts that failed."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from arcbeam import ArcbeamRunner
from arcbeam.errors import UserCodeError
from arcbeam.spark.tasks import workerlog
from arcbeam.spark.tasks.lostattempts import LeftLines, record_lines
from arcbeam.spark.tasks.workerlog import TaskFilter, TaskLines, task_lines
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.jobtemp.location import JobLocation
from arcbeam.store.log.planfile import details_in, tasks_in

pytestmark = pytest.mark.contract("PAGE-12")


def record(text: str, level: int = logging.INFO, *arguments: Any, name: str = "shop") -> logging.LogRecord:
    return logging.LogRecord(name, level, __file__, 1, text, arguments, None)


@pytest.fixture
def location(tmp_path: Path) -> JobLocation:
    (tmp_path / "job").mkdir()
    return JobLocation(str(tmp_path / "job"))


@pytest.fixture
def running() -> Iterator[list[str]]:
    """A task whose stage is the last one in the list."""
    stages = ["read"]
    task_lines.begin(lambda: stages[-1])
    yield stages
    task_lines.end()


def test_lines_belong_to_the_stage_that_ran(running: list[str]) -> None:
    task_lines.handle(record("order %d", logging.INFO, 7))
    running.append("sum")
    task_lines.handle(record("late", logging.WARNING, name="root"))
    assert [(line.level, line.text) for line in task_lines.taken("read")] == [("INFO", "shop: order 7")]
    assert [(line.level, line.text) for line in task_lines.taken("sum")] == [("WARNING", "late")]
    assert task_lines.taken("sum") == []


def test_what_the_sdk_says_of_optional_packages_is_dropped() -> None:
    of_modules = (record("ImportError: from google.cloud", logging.WARNING, name="apache_beam.io.gcp.bigtableio"),)
    dropped = [*of_modules, record("apitools not found, and …", logging.WARNING, name="root")]
    kept = [record("ImportError: of mine", logging.WARNING), record("slow", logging.WARNING, name="apache_beam.io")]
    assert [TaskFilter().filter(each) for each in dropped + kept] == [False, False, True, True]


def test_chatty_task_sends_few_lines_and_all_kinds(running: list[str]) -> None:
    for number in range(1000):
        task_lines.handle(record(f"{number:04}"))
    task_lines.handle(record("bad", logging.ERROR))
    lines = task_lines.taken("read")
    assert lines[0].text == "shop: 0000"
    assert lines[-2].text == "shop: bad"
    assert lines[-1].text == f"{1000 - workerlog._LINES:,} more lines are in the executor's log"
    assert len(lines) == workerlog._LINES + 2


def test_many_tasks_send_fewer_lines_each(running: list[str]) -> None:
    task_lines.begin(lambda: "read", 5_000)
    for number in range(10):
        task_lines.handle(record(f"{number}"))
    assert [line.text for line in task_lines.taken("read")] == ["shop: 0", "9 more lines are in the executor's log"]


def test_long_line_is_shortened_and_bad_one_is_named(running: list[str]) -> None:
    task_lines.handle(record("x" * 100_000, logging.ERROR))
    task_lines.handle(record("%d", logging.INFO, "no number"))
    info, error = sorted(task_lines.taken("read"), key=lambda line: line.level == "ERROR")
    assert len(error.text) < 600
    assert info.text == "shop: a line that cannot be formatted"


def test_lines_outside_of_a_task_are_not_kept() -> None:
    lines = TaskLines()
    lines.handle(record("early"))
    lines.begin(lambda: "read")
    lines.handle(record("in time"))
    lines.end()
    lines.handle(record("late"))
    assert lines.stages() == []


def test_failed_attempts_leave_their_lines_once(location: JobLocation, running: list[str]) -> None:
    left = LeftLines(location)
    assert list(left.new()) == []
    for text in ("first", "second"):
        task_lines.handle(record(text))
        record_lines(location, "1-0", "host:7")
        ((stage, worker, lines),) = left.new()
        assert (stage, worker, [line.text for line in lines]) == ("read", "host:7", [f"shop: {text}"])
        assert list(left.new()) == []
    record_lines(location, "1-0", "host:7")
    assert len(location.list()) == 1, "as many files as tasks, and none without lines"


def test_ended_job_gets_no_file(tmp_path: Path, running: list[str]) -> None:
    task_lines.handle(record("too late"))
    record_lines(JobLocation(str(tmp_path / "removed")), "1-0", "host:7")
    assert list(tmp_path.iterdir()) == []


class Check(beam.DoFn):
    def __init__(self, bad: int) -> None:
        self.bad = bad

    def setup(self) -> None:
        logging.getLogger("shop").info("opened")

    def process(self, number: int) -> Any:
        logging.getLogger("shop").warning("checks %d", number)
        if number == self.bad:
            raise ValueError(f"{number} is bad")
        yield number % 2, number


def lines_of(log: list[dict[str, Any]]) -> set[tuple[str, str, str]]:
    return {(each["stage"].split("/")[0], each["level"], each["text"]) for each in log}


def orders(*arguments: str, bad: int = -1) -> beam.Pipeline:
    p = beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions(["--shards=1", *arguments]))
    sums = p | beam.Create([1]) | "Check" >> beam.ParDo(Check(bad)) | beam.CombinePerKey(sum)
    _ = sums | "Total" >> beam.Map(lambda total: logging.getLogger("shop").info("total %s", total))
    return p


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("bad", [-1, 1])
def test_folder_of_a_streaming_job_has_lines_of_its_stages(tmp_path: Path, bad: int) -> None:
    p = orders("--streaming", f"--checkpoint_dir={tmp_path}", bad=bad)
    if bad == 1:
        with pytest.raises(UserCodeError, match="1 is bad"):
            p.run().wait_until_finish()
    else:
        p.run().wait_until_finish()
    details = details_in(FolderBlobs(tmp_path))
    assert details is not None
    checked = {("Create", "INFO", "shop: opened"), ("Create", "WARNING", "shop: checks 1")}
    totals = {("CombinePerKey(sum)", "INFO", "shop: total (1, 1)")} if bad != 1 else set[Any]()
    assert lines_of(details["log"]) == checked | totals
    if bad != 1:
        tasks = tasks_in(FolderBlobs(tmp_path))
        assert tasks is not None
        assert all(of["spark_stage"] >= 0 for of in tasks["stages"].values())


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("bad", [-1, 1])
def test_bounded_job_has_lines_of_its_stages(bad: int) -> None:
    result: Any = orders(bad=bad).run()
    if bad == 1:
        with pytest.raises(UserCodeError, match="1 is bad"):
            result.wait_until_finish()
    else:
        result.wait_until_finish()
    progress = result._job.snapshot()["progress"]
    checked = {("Create", "INFO", "shop: opened"), ("Create", "WARNING", "shop: checks 1")}
    totals = {("CombinePerKey(sum)", "INFO", "shop: total (1, 1)")} if bad != 1 else set[Any]()
    assert lines_of(progress["log"]) == checked | totals
    if bad != 1:
        assert all(stage["spark_stage"] >= 0 for stage in progress["stages"])
