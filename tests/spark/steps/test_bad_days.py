"""What a streaming job on Spark makes of bad input and bad days: it goes on, or fails and can be resumed."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms import trigger, userstate, window
from apache_beam.utils.timestamp import Duration, Timestamp

from arcbeam import ArcbeamRunner
from arcbeam.doctor import require_java
from arcbeam.errors import JobFailedError, UserCodeError
from arcbeam.store.blobs.errors import NewerFormatError, StoreError
from tests.notes import note, noted
from tests.offsets import UpTo
from tests.store.damage import newer

pytestmark = pytest.mark.usefixtures("spark")


def pipeline(*arguments: str) -> beam.Pipeline:
    return beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions(["--streaming", "--shards=2", *arguments]))


class Ticks(beam.DoFn):
    """So many numbers, each at its own second of event time; a few, then a pause: each few in another step.

    Args:
        few: numbers before a pause.
        seconds: of the pause.
        stalls_at: the number before which it pauses for good.
    """

    def __init__(self, few: int = 2, seconds: float = 0.05, stalls_at: int | None = None) -> None:
        self._few, self._seconds, self._stalls_at = few, seconds, stalls_at

    @beam.DoFn.unbounded_per_element()
    def process(
        self,
        element: int,
        tracker: Any = beam.DoFn.RestrictionParam(UpTo()),
        watermark: Any = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider()),
    ) -> Iterator[Any]:
        at = tracker.current_restriction().start
        for n in range(at, at + self._few):
            if n == self._stalls_at:
                tracker.defer_remainder(Duration(3600))
                return
            if not tracker.try_claim(n):
                return
            yield window.TimestampedValue(n, n)
            watermark.set_watermark(Timestamp(n))
        tracker.defer_remainder(Duration(micros=int(self._seconds * 1e6)))


def ticks(p: beam.Pipeline, count: int, name: str = "Ticks", **more: Any) -> Any:
    return p | f"{name} of" >> beam.Create([count], reshuffle=False) | name >> beam.ParDo(Ticks(**more))


def test_an_event_of_the_far_future_waits_and_holds_nobody_up(tmp_path: Path) -> None:
    with pipeline() as p:
        far = Timestamp.from_rfc3339("9999-01-01T00:00:00Z")
        times = ticks(p, 12) | beam.Map(lambda n: window.TimestampedValue((0, n), far if n == 3 else n))
        counts = times | beam.WindowInto(window.FixedWindows(4)) | beam.GroupByKey()
        _ = counts | beam.Map(lambda pair, folder: note(sorted(pair[1]), folder), str(tmp_path))
    (written,) = (file.read_text().splitlines() for file in sorted(tmp_path.iterdir()) if "[3]" in file.read_text())
    assert written[-1] == "[3]"
    assert sorted(noted(tmp_path)) == [[0, 1, 2], [3], [4, 5, 6, 7], [8, 9, 10, 11]]


@pytest.mark.contract("ENG-02")
def test_a_source_that_stalls_holds_windows_and_nobody_else(tmp_path: Path) -> None:
    alone, both = tmp_path / "alone", tmp_path / "both"
    alone.mkdir()
    both.mkdir()
    p = pipeline()
    steady, stalled = ticks(p, 12, "Steady"), ticks(p, 12, "Stalled", stalls_at=5)
    for folder, name, of in ((alone, "Alone", steady), (both, "Both", (steady, stalled) | beam.Flatten())):
        keyed = of | f"{name} keyed" >> beam.Map(lambda n: (0, n))
        grouped = keyed | f"{name} windows" >> beam.WindowInto(window.FixedWindows(4)) | name >> beam.GroupByKey()
        _ = grouped | f"{name} noted" >> beam.Map(lambda pair, to: note(sorted(pair[1]), to), str(folder))
    result = p.run()
    while len(noted(alone)) < 3:
        result.wait_until_finish(50)
    assert result.state == "RUNNING"
    result.cancel()
    assert sorted(noted(alone)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert noted(both) == [[0, 0, 1, 1, 2, 2, 3, 3]]


def test_one_key_has_half_of_the_data() -> None:
    with pipeline() as p:
        made = p | beam.Impulse() | beam.FlatMap(lambda _: range(40_000))
        keyed = made | beam.Map(lambda n: window.TimestampedValue((n % 1000 if n % 2 else -1, n), n // 10_000))
        sizes = (
            keyed
            | beam.WindowInto(window.FixedWindows(2))
            | beam.GroupByKey()
            | beam.MapTuple(lambda key, values: (key == -1, len(list(values))))
        )
        assert_that(sizes | beam.combiners.Count.PerElement(), equal_to([((True, 10_000), 1), ((False, 20), 500)] * 2))


def test_a_window_that_never_closes_comes_out_at_the_end() -> None:
    never = beam.WindowInto(
        window.GlobalWindows(), trigger=trigger.AfterWatermark(), accumulation_mode=trigger.AccumulationMode.DISCARDING
    )
    with pipeline() as p:
        grouped = ticks(p, 12) | beam.Map(lambda n: (n % 2, n)) | never | beam.GroupByKey()
        assert_that(
            grouped | beam.MapTuple(lambda key, values: (key, sorted(values))),
            equal_to([(0, [0, 2, 4, 6, 8, 10]), (1, [1, 3, 5, 7, 9, 11])]),
        )


class Kept(beam.DoFn):
    """How many of a key have come, and whether one of them may not."""

    SEEN = userstate.CombiningValueStateSpec("seen", sum)

    def __init__(self, poison: int | None, folder: str) -> None:
        self._poison, self._folder = poison, folder

    def process(self, element: Any, seen: Any = beam.DoFn.StateParam(SEEN)) -> Iterator[Any]:
        if element[1] == self._poison:
            raise ValueError("not this one")
        seen.add(1)
        yield element[1], seen.read()


@pytest.mark.contract("BAT-04", "STORE-01", "STORE-04")
def test_an_error_in_a_later_step_fails_the_job_and_mended_it_goes_on_from_the_step_before(tmp_path: Path) -> None:
    out, state = tmp_path / "out", f"--checkpoint_dir={tmp_path / 'state'}"
    out.mkdir()

    def run(poison: int | None) -> Any:
        p = pipeline(state)
        kept = ticks(p, 30) | beam.Map(lambda n: ("key", n)) | "Keep" >> beam.ParDo(Kept(poison, ""))
        # What a step that failed had put out does not get behind an exchange.
        counted = kept | beam.WindowInto(window.FixedWindows(5)) | beam.Map(lambda pair: (0, pair)) | beam.GroupByKey()
        _ = counted | beam.Map(lambda pair, folder: note(sorted(pair[1]), folder), str(out))
        return p.run()

    for _ in range(2):
        with pytest.raises(UserCodeError, match="not this one") as caught:
            run(17).wait_until_finish()
        assert caught.value.step == "Keep"
        assert re.search(r"\n  in step [0-9]+, key 'key'\n", str(caught.value))
    assert sorted(noted(out)) == [[(n, n + 1) for n in range(at, at + 5)] for at in (0, 5, 10)]
    assert run(None).wait_until_finish() == "DONE"
    assert sorted(noted(out)) == [[(n, n + 1) for n in range(at, at + 5)] for at in range(0, 30, 5)]


def going_on(state: Path, out: Path, count: int = 30) -> Any:
    """A job that counts numbers in windows of five."""
    out.mkdir(exist_ok=True)
    p = pipeline(f"--checkpoint_dir={state}")
    timed = ticks(p, count) | beam.WindowInto(window.FixedWindows(5)) | beam.Map(lambda n: (0, n)) | beam.GroupByKey()
    _ = timed | beam.Map(lambda pair, folder: note(sorted(pair[1]), folder), str(out))
    return p.run()


def in_fives(count: int = 30) -> list[list[int]]:
    return [list(range(at, at + 5)) for at in range(0, count, 5)]


def until_there_is_some(result: Any, out: Path) -> None:
    while not noted(out):
        assert result.wait_until_finish(50) == "RUNNING"


def until_it_is_told(result: Any, caplog: pytest.LogCaptureFixture, what: str) -> None:
    while not any(what in message for message in caplog.messages):
        assert result.wait_until_finish(50) == "RUNNING"


@pytest.mark.contract("STORE-01")
def test_a_store_that_is_away_for_a_while_ends_no_job(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    state, away, out = tmp_path / "state", tmp_path / "away", tmp_path / "out"
    result = going_on(state, out)
    until_there_is_some(result, out)
    state.rename(away)
    # A file: nobody may make another folder there.
    state.touch()
    until_it_is_told(result, caplog, str(state))
    state.unlink()
    away.rename(state)
    assert result.wait_until_finish() == "DONE"
    assert sorted({tuple(pane) for pane in noted(out)}) == list(map(tuple, in_fives()))


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
    assert sorted({tuple(pane) for pane in noted(out)}) == list(map(tuple, in_fives()))


@pytest.mark.contract("STORE-05")
def test_a_state_of_a_newer_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    state, out = tmp_path / "state", tmp_path / "out"
    result = going_on(state, out)
    until_there_is_some(result, out)
    result.cancel()
    newest = max((state / "manifests").iterdir())
    newest.write_bytes(newer(newest.read_bytes()))
    before = {file: file.read_bytes() for file in state.rglob("*") if file.is_file()}
    with pytest.raises(NewerFormatError, match="this version of arcbeam reads up to"):
        going_on(state, out).wait_until_finish()
    assert {file: file.read_bytes() for file in before} == before


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("nobody but root can mount a small file system")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.contract("STORE-01")
def test_a_store_that_is_full_for_a_while_ends_no_job(
    small: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state, out, ballast = small / "state", tmp_path / "out", small / "ballast"
    result = going_on(state, out)
    until_there_is_some(result, out)
    with contextlib.suppress(OSError), open(ballast, "wb", buffering=0) as file:
        while file.write(bytes(1 << 12)):
            pass
    until_it_is_told(result, caplog, "No space left on device")
    ballast.unlink()
    assert result.wait_until_finish() == "DONE"
    assert sorted({tuple(pane) for pane in noted(out)}) == list(map(tuple, in_fives()))


_ALONE = """
import logging, sys
from pathlib import Path
from tests.spark.steps.test_bad_days import going_on

logging.basicConfig(level=logging.WARNING)
print(going_on(Path(sys.argv[1]), Path(sys.argv[2]), 60).wait_until_finish())
"""


@pytest.mark.long
@pytest.mark.contract("STORE-01")
def test_a_host_that_is_full_for_a_while_ends_no_job(small: Path, tmp_path: Path) -> None:
    """Its copies of state, and whatever else is local: what is durable is elsewhere."""
    require_java()
    out, ballast, told = tmp_path / "out", small / "ballast", tmp_path / "told"
    out.mkdir()
    command = [sys.executable, "-c", _ALONE, str(tmp_path / "state"), str(out)]
    with told.open("wb") as log:
        job = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "TMPDIR": str(small)})
    try:
        while not noted(out):
            assert job.poll() is None, told.read_text()
            time.sleep(0.05)
        with contextlib.suppress(OSError), open(ballast, "wb", buffering=0) as file:
            while file.write(bytes(1 << 12)):
                pass
        while "No space left on device" not in told.read_text():
            assert job.poll() is None, told.read_text()
            time.sleep(0.05)
        ballast.unlink()
        assert job.wait() == 0, told.read_text()
    finally:
        job.kill()
    assert told.read_text().rstrip().endswith("DONE")
    assert sorted({tuple(pane) for pane in noted(out)}) == list(map(tuple, in_fives(60)))


def test_an_error_behind_a_source_names_the_restriction_that_was_read() -> None:
    named = r"in step [0-9]+, restriction OffsetRange\(start=\d+, stop=30\) of element 30"
    with pytest.raises(UserCodeError, match=named), pipeline() as p:
        _ = ticks(p, 30) | "Divide" >> beam.Map(lambda n: 1 // (n - 7))
