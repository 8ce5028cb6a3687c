"""Faults of a streaming job's store and host on Spark: the job survives them, or fails and can be resumed."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.transforms import window

from arcbeam.errors import JobFailedError
from arcbeam.io import Publish
from arcbeam.spark.session.java import require_java
from arcbeam.store.blobs.errors import IncompatibleStateError, NewerFormatError, StoreError
from tests.spark.publishing import Renames, Stage, left_over, published
from tests.spark.streaming.days.jobs import (
    expected_panes,
    head_of,
    panes,
    pipeline,
    summing_job,
    ticks,
    until_logged,
    until_output,
)
from tests.spark.streaming.days.smalldisk import SmallDisk, small_disk
from tests.spark.streaming.fed import fed, feed
from tests.store.damage import newer
from tests.waiting import until, while_running

on_spark = pytest.mark.usefixtures("spark")

# An unavailable store.


@contextlib.contextmanager
def away(state: Path) -> Iterator[None]:
    """Remove the folder while the block runs, as a lost mount does; check that no process creates it again."""
    elsewhere = state.with_name("elsewhere")
    state.rename(elsewhere)
    try:
        yield
    finally:
        made = [path for path in (state, *state.rglob("*")) if path.exists()]
        shutil.rmtree(state, ignore_errors=True)
        elsewhere.rename(state)
    assert not made


@on_spark
@pytest.mark.contract("STORE-01")
def test_job_survives_unavailable_store(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    state, out = tmp_path / "state", tmp_path / "out"
    result = summing_job(state, out)
    until_output(result, out)
    with away(state):
        until_logged(result, caplog, str(state))
    assert result.wait_until_finish() == "DONE"
    assert panes(out) == expected_panes()


@on_spark
@pytest.mark.long
@pytest.mark.contract("STORE-01")
def test_job_survives_store_unavailable_for_a_minute(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    state, out = tmp_path / "state", tmp_path / "out"
    result = summing_job(state, out)
    until_output(result, out)
    before = head_of(state).micro_batch
    with away(state):
        until_logged(result, caplog, str(state))
        began = time.monotonic()
        while time.monotonic() - began < 60:
            assert result.wait_until_finish(200) == "RUNNING"
    assert result.wait_until_finish() == "DONE"
    assert head_of(state).micro_batch > before
    assert panes(out) == expected_panes()


@on_spark
@pytest.mark.long
@pytest.mark.contract("STORE-01", "STORE-04")
def test_permanently_unavailable_store_fails_job_until_resumed(tmp_path: Path) -> None:
    state, rows = tmp_path / "state", tmp_path / "rows"
    rows.mkdir()

    def submit() -> Any:
        p = pipeline(f"--checkpoint_dir={state}")
        _ = ticks(p, 40) | beam.ParDo(Stage(rows)) | Publish(Renames(rows))
        return p.run()

    result = submit()
    while_running(result, lambda: published(rows))
    with away(state):
        out = published(rows)
        with pytest.raises(JobFailedError) as caught:
            result.wait_until_finish()
        assert result.state == "FAILED"
        assert str(state) in str(caught.value)
        # The files of the last commit may still be published.
        assert len(published(rows)) - len(out) <= 4
    committed = head_of(state).micro_batch
    assert max(int(file.name.split("_")[1]) for file in rows.iterdir() if file.is_file()) <= committed
    assert submit().wait_until_finish() == "DONE"
    assert sorted(map(int, published(rows))) == list(range(40))
    assert left_over(rows) == []


# A folder with one owner.


@on_spark
@pytest.mark.contract("STORE-03")
def test_fenced_driver_fails_and_new_driver_continues(tmp_path: Path) -> None:
    state, out = tmp_path / "state", tmp_path / "out"
    first = summing_job(state, out)
    until_output(first, out)
    second = summing_job(state, out)
    with pytest.raises((StoreError, JobFailedError), match="driver"):
        first.wait_until_finish()
    assert first.state == "FAILED"
    assert second.wait_until_finish() == "DONE"
    assert panes(out) == expected_panes()


def files_of(state: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in state.rglob("*") if file.is_file()}


@on_spark
@pytest.mark.contract("STORE-05")
def test_state_of_newer_version_is_refused_and_unchanged(tmp_path: Path) -> None:
    state, out = tmp_path / "state", tmp_path / "out"
    result = summing_job(state, out)
    until_output(result, out)
    result.cancel()
    result.wait_until_finish()
    newest = max((state / "manifests").iterdir())
    own = newest.read_bytes()
    newest.write_bytes(newer(own))
    before, seen = files_of(state), panes(out)
    with pytest.raises(NewerFormatError, match="version"):
        summing_job(state, out).wait_until_finish()
    assert files_of(state).items() >= before.items()
    assert panes(out) == seen
    newest.write_bytes(own)
    assert summing_job(state, out).wait_until_finish() == "DONE"
    assert panes(out) == expected_panes()


@on_spark
@pytest.mark.contract("STORE-05")
def test_incompatible_pipeline_is_refused_and_old_one_resumes(tmp_path: Path) -> None:
    source, state, rows = (tmp_path / name for name in ("source", "state", "rows"))
    rows.mkdir()

    def submit(key: int | str = 0, name: str = "Sum") -> Any:
        p = pipeline(f"--checkpoint_dir={state}")
        keyed = fed(p, source) | beam.Map(lambda n: (key, n)).with_output_types(tuple[type(key), int])
        sums = (
            keyed
            | beam.WindowInto(window.FixedWindows(5))
            | name >> beam.GroupByKey()
            | beam.MapTuple(lambda key, values: sum(values))
        )
        _ = sums | beam.ParDo(Stage(rows)) | Publish(Renames(rows))
        return p.run()

    feed(source, 12)
    first = submit()
    while_running(first, lambda: published(rows))
    first.cancel()
    first.wait_until_finish()
    head, out = head_of(state), published(rows)
    other, renamed = "'Sum'.* kind", "'Sum'"
    for changed, why in ((("all", "Sum"), other), ((0, "Total"), renamed)):
        result = submit(*changed)
        with pytest.raises(IncompatibleStateError, match=why):
            result.wait_until_finish()
        assert result.state == "FAILED"
        assert head_of(state) == head
        assert published(rows) == out
    feed(source, 30, end=True)
    assert submit().wait_until_finish() == "DONE"
    assert sorted(map(int, published(rows))) == [sum(pane) for pane in expected_panes()]
    assert left_over(rows) == []


# A full disk.

_ALONE = """
import logging, sys
from pathlib import Path
from tests.spark.streaming.days.jobs import summing_job

logging.basicConfig(level=logging.WARNING)
print(summing_job(Path(sys.argv[1]), Path(sys.argv[2]), 60).wait_until_finish())
"""


@pytest.fixture
def small(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "small") as disk:
        yield disk


def survives_full_disk(disk: SmallDisk, folder: Path, state: Path, **env: str) -> None:
    """Run a job in a separate process that may use the disk: the disk fills up, and the job succeeds."""
    require_java()
    out, output = folder / "out", folder / "output"
    out.mkdir()
    command = [*disk.enter, sys.executable, "-c", _ALONE, str(state), str(out)]
    with output.open("wb") as log:
        job = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **env})
    try:
        until(lambda: panes(out), output.read_text, process=job)
        with disk.full():
            until(lambda: "No space left on device" in output.read_text(), output.read_text, process=job)
        assert job.wait() == 0, output.read_text()
    finally:
        job.kill()
    assert output.read_text().rstrip().endswith("DONE")
    assert panes(out) == expected_panes(60)


@pytest.mark.contract("STORE-01")
def test_job_survives_full_store(
    small: SmallDisk, tmp_path: Path, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    if small.enter:
        survives_full_disk(small, tmp_path, small.folder / "state")
        return
    # If this process can also use the disk, it need not start another.
    request.getfixturevalue("spark")
    out = tmp_path / "out"
    result = summing_job(small.folder / "state", out)
    until_output(result, out)
    with small.full():
        until_logged(result, caplog, "No space left on device")
    assert result.wait_until_finish() == "DONE"
    assert panes(out) == expected_panes()


@pytest.mark.long
@pytest.mark.contract("STORE-01")
def test_job_survives_full_host(small: SmallDisk, tmp_path: Path) -> None:
    """Only local files are on the full disk, such as copies of state; durable files are elsewhere."""
    survives_full_disk(small, tmp_path, tmp_path / "state", TMPDIR=str(small.folder))
