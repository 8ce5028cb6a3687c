"""A Spark Connect server that is killed while a streaming job runs on it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms import window

from arcbeam import ArcbeamRunner
from arcbeam.errors import ServerLostError
from tests.golden.texts import check_message
from tests.spark.session.connectserver import ConnectServer
from tests.spark.streaming.fed import fed, feed
from tests.waiting import until

_ROOT = Path(__file__).resolve().parents[4]
_PATIENCE = 300.0

NEXT = 1000
"""The output of the process's next pipeline."""

pytestmark = [pytest.mark.long, pytest.mark.contract("STORE-05")]


def run(source: str, out: str, *options: str) -> None:
    """Write sums of five numbers each, one file per sum."""

    def write(total: int) -> None:
        (Path(out) / str(total)).touch()

    with beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions(["--streaming", *options])) as p:
        sums = (
            fed(p, Path(source))
            | beam.WindowInto(window.FixedWindows(5))
            | beam.CombineGlobally(sum).without_defaults()
        )
        _ = sums | beam.Map(write)


def run_next(out: str) -> None:
    """Run another pipeline, whose options name no server."""

    def write(name: str) -> None:
        (Path(out) / name).touch()

    with beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions([])) as p:
        _ = p | beam.Create([str(NEXT)]) | beam.Map(write)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ConnectServer]:
    server = ConnectServer(tmp_path)
    server.start()
    yield server
    server.kill()


class Job:
    """The job, in a separate process."""

    def __init__(self, folder: Path, url: str) -> None:
        self._source, self.out, self._log = folder / "source", folder / "out", folder / "job.log"
        self.out.mkdir()
        feed(self._source, 12)
        with open(self._log, "wb") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.spark.streaming.days.test_connect_server"),
                    *(str(self._source), str(self.out), f"--spark_remote={url}"),
                    *(f"--checkpoint_dir={folder / 'state'}", "--shards=2", f"--arcbeam_temp={folder / 'temp'}"),
                ],
                cwd=_ROOT,
                env={**os.environ},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def feed(self, until: int, *, end: bool = False) -> None:
        feed(self._source, until, end=end)

    def continues(self) -> None:
        """Let the process run the pipeline again after it was lost."""
        self._tell("again")

    def ends(self) -> None:
        """Let the process end after the job was lost."""
        self._tell("end")

    def _tell(self, what: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{what}\n".encode())
        self.process.stdin.flush()

    def sums(self) -> set[int]:
        return {int(file.name) for file in self.out.iterdir()}

    def reported(self) -> str:
        return self._log.read_text(errors="replace")

    def wait_for(self, over: Callable[[], bool]) -> None:
        until(over, lambda: self.reported()[-4000:], seconds=_PATIENCE, process=self.process)


def test_job_continues_on_restarted_server(tmp_path: Path, server: ConnectServer) -> None:
    job = Job(tmp_path, server.url)
    try:
        job.wait_for(lambda: job.sums() == {10, 35})
        server.kill()
        job.wait_for(lambda: re.search(r"Connect server at \S+ does not answer", job.reported()) is not None)
        server.start()
        job.feed(20)
        job.wait_for(lambda: job.sums() >= {10, 35, 60, 85})
        job.feed(22, end=True)
        assert job.process.wait(_PATIENCE) == 0, job.reported()[-4000:]
        assert job.sums() == {10, 35, 60, 85, 41, NEXT}
    finally:
        job.process.kill()


def test_job_fails_within_minutes_with_remedy(tmp_path: Path, server: ConnectServer) -> None:
    job = Job(tmp_path, server.url)
    try:
        job.wait_for(lambda: job.sums() == {10, 35})
        server.kill()
        job.ends()
        assert job.process.wait(_PATIENCE) == 1
        (line,) = re.findall(r"ServerLostError: (.*\n.*)", job.reported())[-1:]
        check_message("connect-server-lost", line, why=re.compile(r"\(.*\)"), url=server.url[5:], folder=tmp_path)
    finally:
        job.process.kill()


def test_next_pipeline_opens_a_new_session(tmp_path: Path, server: ConnectServer) -> None:
    job = Job(tmp_path, server.url)
    try:
        job.wait_for(lambda: job.sums() == {10, 35})
        server.kill()
        job.wait_for(lambda: "ServerLostError:" in job.reported())
        server.start()
        job.feed(22, end=True)
        job.continues()
        assert job.process.wait(_PATIENCE) == 0, job.reported()[-4000:]
        assert job.sums() == {10, 35, 60, 85, 41, NEXT}
    finally:
        job.process.kill()


if __name__ == "__main__":
    try:
        run(*sys.argv[1:])
    except ServerLostError:
        traceback.print_exc()
        if sys.stdin.readline() != "again\n":
            raise
        run(*sys.argv[1:])
    run_next(sys.argv[2])
