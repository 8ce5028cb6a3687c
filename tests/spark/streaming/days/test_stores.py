"""Bad days of a streaming job's store and host on Spark: it goes on, or fails and goes on when that is mended."""

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
    going_on,
    head_of,
    in_fives,
    panes,
    pipeline,
    ticks,
    until_it_is_told,
    until_there_is_some,
)
from tests.spark.streaming.days.smalldisk import SmallDisk, small_disk
from tests.spark.streaming.fed import fed, feed
from tests.store.damage import newer

on_spark = pytest.mark.usefixtures("spark")

# A store that is away.


@contextlib.contextmanager
def away(state: Path) -> Iterator[None]:
    """While the block runs there is no such folder, as where a mount has gone, and nobody makes one."""
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
def test_a_store_that_is_away_for_a_while_ends_no_job(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    state, out = tmp_path / "state", tmp_path / "out"
    result = going_on(state, out)
    until_there_is_some(result, out)
    with away(state):
        until_it_is_told(result, caplog, str(state))
    assert result.wait_until_finish() == "DONE"
    assert panes(out) == in_fives()


@on_spark
@pytest.mark.long
@pytest.mark.contract("STORE-01")
def test_a_store_that_is_away_for_a_minute_ends_no_job(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    state, out = tmp_path / "state", tmp_path / "out"
    result = going_on(state, out)
    until_there_is_some(result, out)
    before = head_of(state).micro_batch
    with away(state):
        until_it_is_told(result, caplog, str(state))
        began = time.monotonic()
        while time.monotonic() - began < 60:
            assert result.wait_until_finish(200) == "RUNNING"
    assert result.wait_until_finish() == "DONE"
    assert head_of(state).micro_batch > before
    assert panes(out) == in_fives()


@on_spark
@pytest.mark.long
@pytest.mark.contract("STORE-01", "STORE-04")
def test_a_store_that_stays_away_fails_the_job_by_name_and_it_goes_on_when_the_store_is_back(tmp_path: Path) -> None:
    state, rows = tmp_path / "state", tmp_path / "rows"
    rows.mkdir()

    def submit() -> Any:
        p = pipeline(f"--checkpoint_dir={state}")
        _ = ticks(p, 40) | beam.ParDo(Stage(rows)) | Publish(Renames(rows))
        return p.run()

    result = submit()
    while not published(rows):
        assert result.wait_until_finish(50) == "RUNNING"
    with away(state):
        out = published(rows)
        with pytest.raises(JobFailedError) as caught:
            result.wait_until_finish()
        assert result.state == "FAILED"
        assert str(state) in str(caught.value)
        # What the last commit has may come out still.
        assert len(published(rows)) - len(out) <= 4
    committed = head_of(state).micro_batch
    assert max(int(file.name.split("_")[1]) for file in rows.iterdir() if file.is_file()) <= committed
    assert submit().wait_until_finish() == "DONE"
    assert sorted(map(int, published(rows))) == list(range(40))
    assert left_over(rows) == []


# A folder that is not for whoever comes.


@on_spark
@pytest.mark.contract("STORE-03")
def test_a_driver_whose_job_was_taken_over_fails_and_the_other_goes_on(tmp_path: Path) -> None:
    state, out = tmp_path / "state", tmp_path / "out"
    first = going_on(state, out)
    until_there_is_some(first, out)
    second = going_on(state, out)
    with pytest.raises((StoreError, JobFailedError), match=r"taken over|another driver"):
        first.wait_until_finish()
    assert first.state == "FAILED"
    assert second.wait_until_finish() == "DONE"
    assert panes(out) == in_fives()


def files_of(state: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in state.rglob("*") if file.is_file()}


@on_spark
@pytest.mark.contract("STORE-05")
def test_a_state_of_a_newer_version_is_refused_and_left_alone_for_who_can_read_it(tmp_path: Path) -> None:
    state, out = tmp_path / "state", tmp_path / "out"
    result = going_on(state, out)
    until_there_is_some(result, out)
    result.cancel()
    result.wait_until_finish()
    newest = max((state / "manifests").iterdir())
    own = newest.read_bytes()
    newest.write_bytes(newer(own))
    before, seen = files_of(state), panes(out)
    with pytest.raises(NewerFormatError, match="this version of arcbeam reads up to"):
        going_on(state, out).wait_until_finish()
    assert files_of(state).items() >= before.items()
    assert panes(out) == seen
    newest.write_bytes(own)
    assert going_on(state, out).wait_until_finish() == "DONE"
    assert panes(out) == in_fives()


@on_spark
@pytest.mark.contract("STORE-05")
def test_a_changed_pipeline_that_does_not_fit_is_refused_by_stage_and_the_old_one_goes_on(tmp_path: Path) -> None:
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
    while not published(rows):
        assert first.wait_until_finish(50) == "RUNNING"
    first.cancel()
    first.wait_until_finish()
    head, out = head_of(state), published(rows)
    anew, renamed = "stage 'Sum' has state of another kind", "stage 'Sum' has state, and the pipeline has no such stage"
    for changed, why in ((("all", "Sum"), anew), ((0, "Total"), renamed)):
        result = submit(*changed)
        with pytest.raises(IncompatibleStateError, match=why):
            result.wait_until_finish()
        assert result.state == "FAILED"
        assert head_of(state) == head
        assert published(rows) == out
    feed(source, 30, end=True)
    assert submit().wait_until_finish() == "DONE"
    assert sorted(map(int, published(rows))) == [sum(pane) for pane in in_fives()]
    assert left_over(rows) == []


# A disk that is full.

_ALONE = """
import logging, sys
from pathlib import Path
from tests.spark.streaming.days.jobs import going_on

logging.basicConfig(level=logging.WARNING)
print(going_on(Path(sys.argv[1]), Path(sys.argv[2]), 60).wait_until_finish())
"""


@pytest.fixture
def small(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "small") as disk:
        yield disk


def goes_on_though_full(disk: SmallDisk, folder: Path, state: Path, **env: str) -> None:
    """A job in a process of its own, which may use the disk, is told that it is full, and ends well."""
    require_java()
    out, told = folder / "out", folder / "told"
    out.mkdir()
    command = [*disk.enter, sys.executable, "-c", _ALONE, str(state), str(out)]
    with told.open("wb") as log:
        job = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **env})

    def until(seen: Any) -> None:
        while not seen():
            assert job.poll() is None, told.read_text()
            time.sleep(0.05)

    try:
        until(lambda: panes(out))
        with disk.full():
            until(lambda: "No space left on device" in told.read_text())
        assert job.wait() == 0, told.read_text()
    finally:
        job.kill()
    assert told.read_text().rstrip().endswith("DONE")
    assert panes(out) == in_fives(60)


@pytest.mark.contract("STORE-01")
def test_a_store_that_is_full_for_a_while_ends_no_job(
    small: SmallDisk, tmp_path: Path, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    if small.enter:
        goes_on_though_full(small, tmp_path, small.folder / "state")
        return
    # Where this process has the disk, too, it need not start another.
    request.getfixturevalue("spark")
    out = tmp_path / "out"
    result = going_on(small.folder / "state", out)
    until_there_is_some(result, out)
    with small.full():
        until_it_is_told(result, caplog, "No space left on device")
    assert result.wait_until_finish() == "DONE"
    assert panes(out) == in_fives()


@pytest.mark.long
@pytest.mark.contract("STORE-01")
def test_a_host_that_is_full_for_a_while_ends_no_job(small: SmallDisk, tmp_path: Path) -> None:
    """Its copies of state, and whatever else is local: what is durable is elsewhere."""
    goes_on_though_full(small, tmp_path, tmp_path / "state", TMPDIR=str(small.folder))
