"""Bad input of a streaming job on Spark: it waits and is reported, and does not delay other elements."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.runners.runner import PipelineState
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms import trigger, window
from apache_beam.utils.timestamp import Timestamp
from click.testing import CliRunner

from arcbeam.cli import main
from tests.notes import note, noted
from tests.offsets import Endless
from tests.spark.streaming.days.jobs import expected_panes, panes, pipeline, ticks
from tests.spark.streaming.fed import fed, feed
from tests.waiting import while_running

pytestmark = pytest.mark.usefixtures("spark")


@pytest.fixture
def start() -> Iterator[Callable[[beam.Pipeline], Any]]:
    """Starts a job. The end of the test cancels those that still run, because it failed: later tests share Spark."""
    results: list[Any] = []

    def started(pipeline: beam.Pipeline) -> Any:
        results.append(pipeline.run())
        return results[-1]

    yield started
    for result in results:
        if not PipelineState.is_terminal(result.state):
            result.cancel()


def test_future_event_waits_without_delaying_others(tmp_path: Path) -> None:
    with pipeline() as p:
        far = Timestamp.from_rfc3339("9999-01-01T00:00:00Z")
        times = ticks(p, 12) | beam.Map(lambda n: window.TimestampedValue((0, n), far if n == 3 else n))
        counts = times | beam.WindowInto(window.FixedWindows(4)) | beam.GroupByKey()
        _ = counts | beam.Map(lambda pair, folder: note(sorted(pair[1]), folder), str(tmp_path))
    (written,) = (file.read_text().splitlines() for file in sorted(tmp_path.iterdir()) if "[3]" in file.read_text())
    assert written[-1] == "[3]"
    assert sorted(noted(tmp_path)) == [[0, 1, 2], [3], [4, 5, 6, 7], [8, 9, 10, 11]]


@pytest.mark.contract("ENG-02", "END-04")
def test_stalled_source_delays_only_its_windows(start: Callable[[beam.Pipeline], Any], tmp_path: Path) -> None:
    alone, both, state, mended = (tmp_path / name for name in ("alone", "both", "state", "mended"))
    alone.mkdir()
    both.mkdir()

    def submit() -> Any:
        p = pipeline(f"--checkpoint_dir={state}")
        steady, stalled = ticks(p, 15, "Steady"), ticks(p, 15, "Stalled", stalls_at=7, until=str(mended))
        for folder, name, of in ((alone, "Alone", steady), (both, "Both", (steady, stalled) | beam.Flatten())):
            keyed = of | f"{name} keyed" >> beam.Map(lambda n: (0, n))
            grouped = keyed | f"{name} windows" >> beam.WindowInto(window.FixedWindows(5)) | name >> beam.GroupByKey()
            _ = grouped | f"{name} noted" >> beam.Map(lambda pair, to: note(sorted(pair[1]), to), str(folder))
        return start(p)

    result = submit()
    while_running(result, lambda: len(panes(alone)) >= 3)
    assert any("Stalled" in cause.stage for cause in result.status().causes)
    result.cancel()
    result.wait_until_finish()
    twice = [tuple(sorted(pane * 2)) for pane in expected_panes(15)]
    assert panes(alone) == expected_panes(15)
    assert panes(both) == twice[:1]
    mended.touch()
    assert submit().wait_until_finish() == "DONE"
    assert panes(alone) == expected_panes(15)
    assert panes(both) == twice


def test_key_with_half_of_the_data_is_grouped() -> None:
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


class Silent(beam.DoFn):
    """Yields numbers below the limit in a folder, without a watermark and without an end."""

    @beam.DoFn.unbounded_per_element()
    def process(self, element: str, tracker: Any = beam.DoFn.RestrictionParam(Endless())) -> Iterator[Any]:
        until = int(Path(element, "fed").read_text().split()[0])
        for n in range(tracker.current_restriction().start, until):
            if not tracker.try_claim(n):
                return
            yield window.TimestampedValue(n, n)
        tracker.defer_remainder(Timestamp.of(time.time() + 0.05))


def keyed_by_two(n: int, read: str) -> tuple[int, int]:
    if n % 100 == 99:
        note(n, read)
    return n % 2, n


@pytest.mark.contract("END-02", "END-03", "WM-06")
def test_unclosed_windows_are_reported_and_output_by_drain(
    start: Callable[[beam.Pipeline], Any], tmp_path: Path
) -> None:
    """One window is the global one of an unbounded source; the others are of a source without a watermark."""
    source, state, read = (tmp_path / name for name in ("source", "state", "read"))
    outs = {name: tmp_path / name for name in ("global", "held")}
    for folder in (read, *outs.values()):
        folder.mkdir()

    def submit() -> Any:
        p = pipeline(f"--checkpoint_dir={state}")
        silent = p | "Who" >> beam.Create([str(source)]) | "Silent" >> beam.ParDo(Silent())
        held = silent | "Tens" >> beam.WindowInto(window.FixedWindows(10))
        endless = fed(p, source) | "Endless" >> beam.WindowInto(
            window.GlobalWindows(),
            trigger=trigger.AfterWatermark(),
            accumulation_mode=trigger.AccumulationMode.DISCARDING,
        )
        for name, numbers in (("global", endless), ("held", held)):
            keyed = numbers | f"Key {name}" >> beam.Map(keyed_by_two, str(read))
            grouped = keyed | f"Group {name}" >> beam.GroupByKey()
            _ = grouped | f"Note {name}" >> beam.Map(
                lambda pair, to: note((pair[0], sorted(pair[1])), to), str(outs[name])
            )
        return start(p)

    def kept(result: Any, least: int) -> int:
        """Wait until both groupings have state and the job reports both; return the bytes of their state."""
        while True:
            status = result.status()
            groups = [] if status is None else [each for each in status.stages if "Group" in each.stage]
            reported = bool(groups) and all(stage.state_bytes > least for stage in groups)
            if reported and any("Silent" in cause.stage for cause in status.causes):
                return min(stage.state_bytes for stage in groups)
            assert result.wait_until_finish(50) == "RUNNING"

    feed(source, 200)
    first = submit()
    before = kept(first, 0)
    (warning,) = (message.text for message in first.messages() if "'Group global' produces" in message.text)
    assert "global window" in warning
    assert first.suspend() is not None
    assert "reports no watermark" in CliRunner().invoke(main.main, ["status", str(state)]).output
    feed(source, 20_000)
    second = submit()
    assert kept(second, before) > before, "it is in the state, not only in memory"
    assert [noted(out) for out in outs.values()] == [[], []], "no window may fire"
    while_running(second, lambda: noted(read).count(19_999) >= 2)
    second.drain()
    assert second.wait_until_finish() == "DRAINED"
    assert sorted(noted(outs["global"])) == [(key, list(range(key, 20_000, 2))) for key in (0, 1)]
    assert sorted(n for _, pane in noted(outs["held"]) for n in pane) == list(range(20_000))
