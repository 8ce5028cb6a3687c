"""Samples of the outputs of a running job: requested in its folder or on its page, taken by its tasks."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms import window
from click.testing import CliRunner

from arcbeam import ArcbeamRunner
from arcbeam.cli.main import main
from arcbeam.errors import ArcbeamError, RequestRefusedError
from arcbeam.page.sources import FolderSource
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.streaming.status.folder import status_in
from arcbeam.streaming.status.samples import sampled
from tests.notes import note, noted
from tests.page.test_app import client
from tests.page.test_control import ORIGIN, fields, result
from tests.spark.streaming.fed import fed, feed
from tests.waiting import until

pytestmark = [pytest.mark.contract("PAGE-15"), pytest.mark.usefixtures("spark")]

_SECONDS = 120.0
EVIL = "<script>alert(1)</script>"


class Job:
    """A pipeline of numbers in windows of ten; it fails for one of them."""

    def __init__(self, folder: Path, *options: str, fails: int = -1) -> None:
        self.folder, self._source, self.out = folder / "job", folder / "source", folder / "out"
        self.out.mkdir()
        self.until = 5
        feed(self._source, self.until)
        given = ["--streaming", "--shards=2", f"--checkpoint_dir={self.folder}", *options]
        p = beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions(given))
        numbers = fed(p, self._source) | "Check" >> beam.Map(lambda n: (n % 2, f"{EVIL}{n // (n - fails) * 0 + n}"))
        windows = numbers | beam.WindowInto(window.FixedWindows(10)) | "Group" >> beam.GroupByKey()
        counts = windows | "Count" >> beam.MapTuple(lambda key, values: (key, len(list(values))))
        _ = counts | "Note" >> beam.Map(lambda pair, to: note(pair, to), str(self.out))
        self.result: Any = p.run()
        until(lambda: (status := self.result.status()) is not None and status.micro_batch >= 1, "a micro-batch")

    @property
    def blobs(self) -> FolderBlobs:
        return FolderBlobs(self.folder)

    @property
    def stages(self) -> list[str]:
        return [stage.stage for stage in status_in(self.blobs).stages]

    @contextmanager
    def flowing(self) -> Iterator[None]:
        """Let the source output ten numbers each half second."""
        ended = threading.Event()

        def flow() -> None:
            while not ended.wait(0.5):
                self.until += 10
                feed(self._source, self.until)

        thread = threading.Thread(target=flow)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def end(self) -> None:
        feed(self._source, self.until, end=True)
        assert self.result.wait_until_finish() == "DONE"


def files(job: Job) -> list[str]:
    return [info.name for folder in ("samples", "requests", "answers") for info in job.blobs.list(folder)]


def test_samples_of_stages_leave_the_output_unchanged(tmp_path: Path) -> None:
    job = Job(tmp_path, "--page_samples")
    page = client(FolderSource([job.blobs]))
    with job.flowing():
        # The first one has one element, when the job begins.
        for stage in job.stages[1:]:
            outputs = sampled(job.blobs, stage, _SECONDS)
            for output in outputs:
                assert 1 <= len(output["elements"]) <= 5
        (counts,) = [output for output in outputs if output["output"] == "Count"]
        assert counts["elements"][0]["pane"] == "on time, number 0, first, last"
        assert " to " in counts["elements"][0]["windows"][0]

        args = ["sample", str(job.folder), job.stages[-1], "--json"]
        (found,) = CliRunner().invoke(main, args, catch_exceptions=False).stdout.splitlines()
        assert {output["output"] for output in json.loads(found)["outputs"]} >= {"Count"}

        number = next(n for n, name in enumerate(job.stages) if "Fed" in name)
        (id,) = [row.id for row in FolderSource([job.blobs]).jobs()]
        at = f"/job/{id}/stage/{number}"
        assert f'href="{at}/sample"' in page.get(at).text
        form = fields(page.get(f"{at}/sample").text)
        assert page.post(f"{at}/sample", data=form | {"form_token": "0"}, headers=ORIGIN).status_code == 403
        address = page.post(f"{at}/sample", data=form, headers=ORIGIN).headers["location"]
        text = result(page, address, "Take samples again")
        assert "&lt;script&gt;" in text
        assert EVIL not in text
    assert files(job) == []
    job.end()
    ends = job.until // 10
    assert len(noted(job.out)) == 2 * ends + (2 if job.until % 10 else 0)


def test_job_without_the_option_refuses(tmp_path: Path) -> None:
    job = Job(tmp_path)
    assert status_in(job.blobs).driver.samples is False
    with pytest.raises(RequestRefusedError, match="--page_samples"):
        sampled(job.blobs, job.stages[0], _SECONDS)
    job.end()
    with pytest.raises(RequestRefusedError, match="it is done"):
        sampled(job.blobs, job.stages[0], _SECONDS)


def test_element_of_a_failure_is_shown(tmp_path: Path) -> None:
    job = Job(tmp_path, "--page_samples", fails=7)
    stage = next(name for name in job.stages if "Fed" in name)
    found: list[Any] = []

    def ask() -> None:
        try:
            found.extend(sampled(job.blobs, stage, _SECONDS))
        except ArcbeamError as e:
            found.append(e)

    asking = threading.Thread(target=ask)
    asking.start()
    until(lambda: bool(list(job.blobs.list("answers"))))
    # The micro-batch that runs now does not carry the request; the second one from now does.
    carried = job.result.status().micro_batch + 2
    until(lambda: bool(job.result.status().micro_batch >= carried))
    feed(tmp_path / "source", 10)
    asking.join()
    (failure,) = [output["failure"] for output in found if "failure" in output]
    assert (failure["transform"], failure["value"]) == ("Check", "7")
    assert failure["error"].startswith("ZeroDivisionError")
    with pytest.raises(ArcbeamError, match="ZeroDivisionError"):
        job.result.wait_until_finish()
