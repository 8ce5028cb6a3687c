"""Exactly-once sinks, and DoFns that are called at the end, in jobs whose other transforms run in SDK workers."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import apache_beam as beam
import grpc
import pytest
from apache_beam.portability.api import beam_job_api_pb2 as job_pb
from apache_beam.portability.api import beam_job_api_pb2_grpc as job_grpc
from apache_beam.runners.worker.worker_pool_main import BeamFnExternalWorkerPoolServicer
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms.window import FixedWindows

from arcbeam import GracefulShutdown
from arcbeam.io import Publish, Roll, WriteParts
from arcbeam.io.parts.places import staging_for
from tests.ends import Tells, TellsAndCounts, called
from tests.notes import note, noted
from tests.spark.fnapi.conftest import submitted_to
from tests.spark.publishing import Renames, Stage, left_over, lives, published
from tests.spark.streaming.fed import fed, feed
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("spark")


@pytest.fixture(scope="module")
def pool() -> Iterator[str]:
    """Run a pool whose workers are processes; yield its address."""
    # The pool starts the `python` of the path.
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with mock.patch.dict(os.environ, PATH=path):
        address, server = BeamFnExternalWorkerPoolServicer.start(use_process=True)
        yield address
        server.stop(None).wait()


@pytest.fixture(params=["LOOPBACK", pytest.param("EXTERNAL", marks=pytest.mark.long)])
def anywhere(endpoint: str, request: pytest.FixtureRequest) -> Callable[..., beam.Pipeline]:
    """Return a function that makes a pipeline whose transforms run in this process, or in processes of a pool."""
    where = [f"--environment_type={request.param}"]
    if request.param == "EXTERNAL":
        where.append(f"--environment_config={request.getfixturevalue('pool')}")
    return lambda *more: submitted_to(endpoint, *where, *more)


def noted_row(n: int, folder: str) -> str:
    """Record the number with its process, and return its row."""
    note(n, folder)
    return str(n)


class DiesOnce(Stage):
    """Stages, and kills its process before it says what, the first time."""

    def finish_bundle(self) -> Iterator[Any]:
        staged = list(super().finish_bundle())
        once = self._folder / "once"
        if staged and not once.exists():
            once.mkdir()
            os.kill(os.getpid(), signal.SIGKILL)
        yield from staged


class Places:
    """The folders of a job with both kinds of sinks.

    Attributes:
        workers: what ran in SDK workers, by process.
        own: of a user's publisher.
        parts: of part files.
    """

    def __init__(self, folder: Path) -> None:
        self.workers, self.own, self.parts = (folder / name for name in ("workers", "own", "parts"))
        self.workers.mkdir()
        self.own.mkdir()

    def write(self, numbers: Any, roll: Roll | None = None) -> None:
        """Apply the sinks. The task of one dies once, and publishing fails once."""
        rows = numbers | "Row" >> beam.Map(noted_row, str(self.workers)).with_output_types(str)
        _ = rows | beam.ParDo(DiesOnce(self.own)) | Publish(Renames(self.own, fails=1))
        parts = rows | WriteParts(str(self.parts), roll=roll, shards=2)
        _ = parts | "Part" >> beam.Map(lambda part: part.records)

    def check(self, rows: int) -> None:
        """Assert that each row is there once, and nothing else."""
        expected = sorted(map(str, range(rows)))
        assert (self.own / "once").exists()
        assert published(self.own) == expected
        assert left_over(self.own) == []
        assert lives(self.own) <= {"set up, torn down", "set up"}, "one process may have been killed"
        assert self.lines() == expected
        assert list(staging_for(str(self.parts), {}).leftovers()) == []
        assert set(noted(self.workers)) == set(range(rows))

    def lines(self) -> list[str]:
        files = (path for path in self.parts.rglob("part-*") if ".arcbeam" not in path.parts)
        return sorted(line for path in files for line in path.read_text().splitlines())


@pytest.mark.long
@pytest.mark.contract("API-04", "END-01", "END-06")
def test_bounded_input_is_written_exactly_once(anywhere: Callable[..., Any], tmp_path: Path) -> None:
    places = Places(tmp_path)
    p = anywhere()
    places.write(p | beam.Create(range(100)) | beam.Reshuffle())
    assert p.run().wait_until_finish() == "DONE"
    places.check(100)


@pytest.mark.contract("API-04", "END-01", "END-06")
def test_unbounded_input_is_written_exactly_once(anywhere: Callable[..., Any], tmp_path: Path) -> None:
    source, places = tmp_path / "source", Places(tmp_path)
    feed(source, 60)
    p = anywhere("--shards=2")
    places.write(fed(p, source) | beam.WindowInto(FixedWindows(50)), Roll(elements=7))
    result = p.run()
    until(lambda: len(places.lines()) >= 50 and len(published(places.own)) == 60)
    feed(source, 100, end=True)
    assert result.wait_until_finish() == "DONE"
    places.check(100)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # the workers' threads end so
@pytest.mark.contract("API-04")
def test_attempt_in_a_worker_is_an_error(pipeline: Callable[[], Any], tmp_path: Path) -> None:
    p = pipeline()
    staged = p | beam.Create([1]) | "Stage" >> beam.ParDo(Stage(tmp_path)) | beam.Map(lambda name: name)
    _ = staged | Publish(Renames(tmp_path))
    expected = r"(?s)an SDK worker runs this DoFn, and does not know the attempt.*\[while running 'Stage'\]"
    with pytest.raises(RuntimeError, match=expected):
        p.run().wait_until_finish()
    assert not (tmp_path / "staged").exists()


class ReadsStaged(beam.DoFn, GracefulShutdown):
    """Outputs the content of a staged file."""

    def process(self, name: str) -> Iterator[str]:
        yield Path(os.environ["SEMI_PERSISTENT_DIRECTORY"], "staged", name).read_text()


@pytest.mark.contract("API-04", "API-05")
def test_staged_files_reach_embedded_parts(pipeline: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("to be")
    p = pipeline(f"--files_to_stage={tmp_path}/words.txt")
    assert_that(p | beam.Create(["words.txt"]) | beam.ParDo(ReadsStaged()), equal_to(["to be"]))
    assert p.run().wait_until_finish() == "DONE"


class Ends:
    """A job with DoFns that are called at its end: one, one with state, and one after a grouping."""

    def __init__(self, folder: Path) -> None:
        self.calls, self._out = folder / "calls", folder / "out"
        self._out.mkdir()

    def call(self, numbers: Any) -> None:
        keyed = numbers | "First" >> beam.ParDo(Tells("first", self.calls, 1000)) | beam.Map(lambda n: ("k", n))
        counted = keyed | "Second" >> beam.ParDo(TellsAndCounts("second", self.calls, ("k", 50_000)))
        summed = counted | beam.CombinePerKey(sum) | "Third" >> beam.ParDo(Tells("third", self.calls, ("end", 0)))
        _ = summed | "Out" >> beam.Map(note, str(self._out))

    def check(self, count: int) -> None:
        expected = {"k": sum(range(count)) + 51_000, "count of k": count + 1, "end": 0}
        assert dict(noted(self._out)) == expected
        names = ("first", "second", "third")
        assert called(self.calls) == [f"{name} {what}" for what in ("prepares", "shuts down") for name in names]


@pytest.mark.contract("API-04", "END-05")
def test_end_of_bounded_input_calls_dofns(anywhere: Callable[..., Any], tmp_path: Path) -> None:
    ends = Ends(tmp_path)
    p = anywhere("--shards=1")
    ends.call(p | beam.Create(range(4)))
    assert p.run().wait_until_finish() == "DONE"
    ends.check(4)


@pytest.mark.long
@pytest.mark.contract("API-04", "END-02", "END-05")
def test_drain_calls_dofns(pipeline: Callable[..., Any], endpoint: str, tmp_path: Path) -> None:
    source, read, ends = tmp_path / "source", tmp_path / "read", Ends(tmp_path)
    read.mkdir()
    feed(source, 4)
    p = pipeline("--shards=1", "--allow_unsafe_triggers")
    ends.call(fed(p, source) | "Read" >> beam.Map(lambda n, to: note(n, to) or n, str(read)))
    result = p.run()
    until(lambda: len(noted(read)) == 4)
    with grpc.insecure_channel(endpoint) as channel:
        job_grpc.JobServiceStub(channel).Drain(job_pb.DrainJobRequest(job_id=result._job_id))
    with pytest.raises(RuntimeError, match="in state DRAINED"):  # the SDK takes that for a failure
        result.wait_until_finish()
    ends.check(4)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # the workers' threads end so
@pytest.mark.contract("API-04", "END-04", "END-05")
def test_error_calls_no_dofn(pipeline: Callable[..., Any], tmp_path: Path) -> None:
    ends = Ends(tmp_path)
    p = pipeline()
    ends.call(p | beam.Create([13]))
    with pytest.raises(RuntimeError, match="unlucky"):
        p.run().wait_until_finish()
    assert called(ends.calls) == []
