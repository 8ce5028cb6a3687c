"""Streaming jobs on Spark that are stopped and resumed: their output equals that of an undisturbed job."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms import userstate, window
from click.testing import CliRunner

from arcbeam import ArcbeamRunner
from arcbeam.cli import main
from arcbeam.errors import RequestRefusedError
from arcbeam.runner.resume import resume
from arcbeam.store.blobs.errors import IncompatibleStateError, LaterMicroBatchesError, StoreError
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.log.chain import known, read_newest
from arcbeam.store.log.inspection import inspect
from arcbeam.store.log.savepoints import copy_savepoint
from tests.golden import check_message
from tests.notes import note, noted
from tests.spark.streaming.fed import fed, feed
from tests.waiting import while_running

pytestmark = pytest.mark.usefixtures("spark")


class Ordinal(beam.DoFn):
    SEEN = userstate.CombiningValueStateSpec("seen", sum)

    def __init__(self) -> None:
        self._count = beam.metrics.Metrics.counter("steering", "seen")

    def process(self, pair: tuple[int, int], seen: Any = beam.DoFn.StateParam(SEEN)) -> Iterator[Any]:
        seen.add(1)
        self._count.inc()
        yield pair[0], (pair[1], seen.read())


class Job:
    """A pipeline with a fed source, state and windows of ten seconds, and its output."""

    def __init__(self, folder: Path) -> None:
        self.source, self.state, self.out, self.read = (folder / name for name in ("source", "state", "out", "read"))
        for each in (self.out, self.read):
            each.mkdir(parents=True, exist_ok=True)

    def submit(self, *more: str, keep: str = "Keep", exchanges: int = 0) -> Any:
        options = PipelineOptions(["--streaming", "--shards=3", f"--checkpoint_dir={self.state}", *more])
        p = beam.Pipeline(runner=ArcbeamRunner(), options=options)
        numbers = fed(p, self.source) | "Read" >> beam.Map(lambda n, to: note(n, to) or n, str(self.read))
        for n in range(exchanges):
            numbers = numbers | f"Spread {n}" >> beam.Reshuffle() | f"On {n}" >> beam.Map(lambda n: n)
        ordinals = numbers | "Key" >> beam.Map(lambda n: (n % 3, n)) | keep >> beam.ParDo(Ordinal())
        windows = ordinals | beam.WindowInto(window.FixedWindows(10)) | "Group" >> beam.GroupByKey()
        _ = windows | beam.Map(
            lambda pair, to, of=beam.DoFn.WindowParam: note((int(of.start), pair[0], sorted(pair[1])), to),
            str(self.out),
        )
        return p.run()

    def panes(self) -> list[Any]:
        return sorted(noted(self.out))


def expected(start: int, until: int) -> list[Any]:
    """Return the panes of windows from `start` on, for the numbers below `until`."""
    panes = []
    for first in range(start, until, 10):
        for key in range(3):
            numbers = [n for n in range(first, min(first + 10, until)) if n % 3 == key]
            panes.append((first, key, [(n, n // 3 + 1) for n in numbers]))
    return sorted(panes)


@pytest.mark.contract("END-03", "STORE-05", "API-06", "OPS-02")
def test_suspended_and_resumed_job_has_undisturbed_output(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    job = Job(tmp_path)
    feed(job.source, 15)
    first = job.submit("--page_address=0", "--metrics_address=0", "--page_samples")
    while_running(first, lambda: len(job.panes()) == 3)
    named = CliRunner().invoke(main.main, ["savepoint", str(job.state), "early"])
    assert named.stdout == f"{job.state}/savepoints/early\n", named.output
    assert inspect(FolderBlobs(job.state), savepoint="early", check=True).problems == ()
    assert first.suspend("pause") == f"{job.state}/savepoints/pause"
    assert first.state == first.wait_until_finish() == "STOPPED"
    assert job.panes() == expected(0, 10), "no window fires for it"
    (seen,) = first.metrics().query(beam.metrics.MetricsFilter().with_name("seen"))["counters"]
    assert (seen.attempted, seen.committed) == (15, 15)
    reported = [record for record in caplog.records if "suspended" in record.getMessage()]
    assert [record.levelname for record in reported] == ["WARNING"], (
        "it must also be visible when nothing else is logged"
    )
    micro_batch = known(read_newest(FolderBlobs(job.state))).micro_batch  # type: ignore[arg-type]
    check_message(
        "suspended",
        reported[0].getMessage(),
        job=first.plan.name,
        folder=job.state,
        micro_batch=f"micro-batch {micro_batch}",
    )
    with pytest.raises(RequestRefusedError) as caught:
        first.drain()
    check_message(
        "drain-refused-suspended-here",
        str(caught.value),
        job=first.plan.name,
        folder=job.state,
        micro_batch=f"micro-batch {micro_batch}",
    )

    # From the folder alone, with another number of shards; the resumed script below has the first one.
    feed(job.source, 25)
    second = resume(str(job.state), ["--job_name=again", "--shards=7", "--metrics_address="])
    options = second._job._options
    assert (options.page_port, options.metrics_endpoint, options.page_samples) == (0, None, False)
    (reminder,) = (record for record in caplog.records if "--page_samples" in record.getMessage())
    assert reminder.levelname == "WARNING", "it shows data: each start allows it by itself"
    assert (second.plan.name, second.job_id[:6]) == ("again", "again-")
    while_running(second, lambda: len(job.panes()) == 6)
    status = second.status()
    assert status is not None
    assert status.name == "again"
    with pytest.raises(RequestRefusedError, match=r"savepoint .*'again'"):
        second.savepoint("early")
    second.suspend()
    assert job.panes() == expected(0, 20)
    inspected = CliRunner().invoke(main.main, ["inspect", str(job.state), "--json"]).stdout
    assert json.loads(inspected)["name"] == "again"

    # With a pipeline whose stage was renamed.
    feed(job.source, 35, end=True)
    with pytest.raises(IncompatibleStateError, match="'Keep'"):
        job.submit(keep="Count").wait_until_finish()
    assert job.submit("--stage_mapping=Keep=Count", keep="Count").wait_until_finish() == "DONE"
    assert job.panes() == expected(0, 35)
    assert sorted(noted(job.read)) == list(range(35)), "no number may be read twice"

    # From the savepoint, in a copy of the folder without the files of its making.
    head = known(read_newest(FolderBlobs(job.state)))  # type: ignore[arg-type]
    copy = FolderBlobs(tmp_path / "copy")
    copy_savepoint(FolderBlobs(job.state), head, "early", copy, tmp_path / "scratch")
    for file in job.out.iterdir():
        file.unlink()
    command = ["savepoints", str(tmp_path / "copy"), "rescale", "4", "--force"]
    assert "from 3 to 4 shards" in CliRunner().invoke(main.main, command, catch_exceptions=False).output
    assert resume(str(tmp_path / "copy")).wait_until_finish() == "DONE"
    assert job.panes() == expected(10, 35)
    assert known(read_newest(copy)).shape.shards == 4  # type: ignore[arg-type]


@pytest.mark.long
@pytest.mark.contract("STORE-05")
def test_dropped_state_is_named(tmp_path: Path) -> None:
    job = Job(tmp_path)
    feed(job.source, 15)
    first = job.submit()
    while_running(first, lambda: len(job.panes()) == 3)
    first.suspend()
    feed(job.source, 25, end=True)
    second = job.submit("--allow_dropped_state", keep="Other")
    assert second.wait_until_finish() == "DONE"
    (warning,) = (message.text for message in second.messages() if "--allow_dropped_state" in message.text)
    assert "'Keep'" in warning
    # Elements that wait in windows are already numbered; new elements are numbered from the beginning.
    ordinal = {n: n // 3 + 1 if n < 15 else (n - 15) // 3 + 1 for n in range(25)}
    reported = [(start, key, [(n, ordinal[n]) for n, _ in pairs]) for start, key, pairs in expected(0, 25)]
    assert job.panes() == reported


@pytest.mark.contract("STORE-05")
def test_state_moves_when_number_of_exchanges_changes(tmp_path: Path) -> None:
    job = Job(tmp_path)
    levels = []
    for until, exchanges in (15, 0), (25, 2), (35, 1):
        feed(job.source, until)
        result = job.submit(exchanges=exchanges)
        while_running(result, lambda until=until: len(job.panes()) == until // 10 * 3)
        result.suspend()
        report = inspect(FolderBlobs(job.state), check=True)
        assert report.problems == ()
        levels.append(next(stage.level for stage in report.stages if stage.stage == "Keep"))
    assert levels == [2, 4, 3]
    feed(job.source, 45, end=True)
    assert job.submit(exchanges=0).wait_until_finish() == "DONE"
    # An exchange changes the order of elements; each is counted once.
    assert _without_order(job.panes()) == _without_order(expected(0, 45))


def _without_order(panes: list[Any]) -> Any:
    counted: dict[int, list[int]] = {}
    for _, key, pairs in panes:
        counted.setdefault(key, []).extend(ordinal for _, ordinal in pairs)
    numbers = [(start, key, sorted(n for n, _ in pairs)) for start, key, pairs in panes]
    return numbers, {key: sorted(ordinals) for key, ordinals in counted.items()}


@pytest.mark.contract("STORE-05", "SDF-02")
def test_transforms_after_a_source_may_change(tmp_path: Path) -> None:
    source, state, seen = (tmp_path / name for name in ("source", "state", "seen"))
    outs = {name: tmp_path / name for name in ("windows", "more")}
    for folder in (seen, *outs.values()):
        folder.mkdir()

    def submit(key: str, *, more: bool, looks: bool) -> Any:
        options = PipelineOptions(["--streaming", "--shards=2", f"--checkpoint_dir={state}"])
        p = beam.Pipeline(runner=ArcbeamRunner(), options=options)
        numbers = fed(p, source) | "Read" >> beam.Map(lambda n: n)
        groups = {"windows": key, **({"more": "Key too"} if more else {})}
        for out, name in groups.items():
            windows = numbers | name >> beam.Map(lambda n: (n % 3, n)) | f"In {out}" >> beam.WindowInto(_TENS)
            grouped = windows | f"Group {out}" >> beam.GroupByKey()
            _ = grouped | f"Note {out}" >> beam.Map(_note_pane, str(outs[out]))
        if looks:
            _ = numbers | beam.Reshuffle() | "Look" >> beam.Map(note, str(seen))
        return p.run()

    def goes_on(until: int, key: str, **more: bool) -> None:
        """Run until all windows that have ended by then have fired."""
        feed(source, until)
        result = submit(key, **more)
        while_running(result, lambda: len(noted(outs["windows"])) >= until // 10 * 3)
        result.suspend()
        assert sorted(noted(outs["windows"])) == _panes(0, until // 10 * 10), "none fires early"

    goes_on(15, "Key", more=False, looks=True)
    goes_on(25, "Key of three", more=True, looks=True)
    feed(source, 35, end=True)
    assert submit("Key of three", more=True, looks=False).wait_until_finish() == "DONE"
    assert sorted(noted(outs["windows"])) == _panes(0, 35)
    assert sorted(noted(outs["more"])) == _panes(15, 35), "it counts only elements that came later"
    assert sorted(noted(seen)) == list(range(25))


_TENS = window.FixedWindows(10)


def _note_pane(pair: Any, to: str, of: Any = beam.DoFn.WindowParam) -> None:
    note((int(of.start), pair[0], sorted(pair[1])), to)


def _panes(start: int, until: int) -> list[Any]:
    """Return the panes of windows for the numbers from `start` on, below `until`."""
    windows = ((first, key) for first in range(start // 10 * 10, until, 10) for key in range(3))
    return [
        (first, key, [n for n in range(max(first, start), min(first + 10, until)) if n % 3 == key])
        for first, key in windows
    ]


@pytest.mark.contract("STORE-05")
def test_sources_side_inputs_and_sinks_can_be_added(tmp_path: Path) -> None:
    streams, state, windows = (tmp_path / name for name in ("streams", "state", "windows"))
    windows.mkdir()

    def submit(*, more: bool, names: bool) -> Any:
        options = PipelineOptions(["--streaming", "--shards=2", f"--checkpoint_dir={state}"])
        p = beam.Pipeline(runner=ArcbeamRunner(), options=options)
        numbers = fed(p, streams / "first")
        if more:
            numbers = (numbers, p | _From(streams / "second")) | beam.Flatten()
        keyed = numbers | "Key" >> beam.Map(lambda n: (n % 3, n)) | "Tens" >> beam.WindowInto(_TENS)
        grouped = keyed | "Group" >> beam.GroupByKey()
        _ = grouped | "Note" >> beam.Map(_note_pane, str(windows))
        if names:
            table = p | "Names" >> beam.Create([(0, "zero"), (1, "one"), (2, "two")])
            reported = grouped | "Tell" >> beam.Map(_text_of, beam.pvalue.AsDict(table))
            _ = reported | "Write" >> beam.io.WriteToText(str(tmp_path / "reported" / "part"))
        return p.run()

    feed(streams / "first", 15)
    result = submit(more=False, names=False)
    while_running(result, lambda: len(noted(windows)) == 3)
    result.suspend()

    feed(streams / "first", 25)
    feed(streams / "second", 25)
    result = submit(more=True, names=False)
    while_running(result, lambda: len(noted(windows)) == 6)
    result.suspend()
    twice = [(start, key, sorted(numbers * 2)) for start, key, numbers in _panes(10, 20)]
    assert sorted(noted(windows)) == [*_panes(0, 10), *twice], "late elements of earlier windows are dropped"

    for name in streams.iterdir():
        feed(name, 35, end=True)
    result = submit(more=True, names=True)
    assert result.wait_until_finish() == "DONE"
    twice = [(start, key, sorted(numbers * 2)) for start, key, numbers in _panes(10, 35)]
    assert sorted(noted(windows)) == [*_panes(0, 10), *twice], "no source is read again"
    lines = [line for file in (tmp_path / "reported").iterdir() for line in file.read_text().splitlines()]
    words = ("zero", "one", "two")
    assert sorted(lines) == sorted(f"{words[key]} {numbers}" for start, key, numbers in twice if start >= 20)


@pytest.mark.contract("STORE-05")
def test_script_with_random_labels_resumes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    job = Job(tmp_path)
    feed(job.source, 15)
    first = job.submit(keep="Keep (Z:54a7b9)")
    while_running(first, lambda: len(job.panes()) == 3)
    first.suspend()
    feed(job.source, 25, end=True)
    assert job.submit(keep="Keep (Z:0c3d1e)").wait_until_finish() == "DONE"
    assert job.panes() == expected(0, 25)
    assert sorted(noted(job.read)) == list(range(25)), "no number may be read twice"
    assert "'Keep (Z:54a7b9)' is resumed as 'Keep (Z:0c3d1e)'" in caplog.text


@pytest.mark.contract("STORE-05", "ENG-05")
def test_side_inputs_can_be_removed_and_added(tmp_path: Path) -> None:
    source, state, looked, kept = (tmp_path / name for name in ("source", "state", "looked", "kept"))
    for folder in (looked, kept):
        folder.mkdir()

    def submit(table: str, *options: str, looks: bool, weighs: bool = False) -> Any:
        given = PipelineOptions(["--streaming", "--shards=2", f"--checkpoint_dir={state}", *options])
        p = beam.Pipeline(runner=ArcbeamRunner(), options=given)
        numbers = fed(p, source)
        sides = [beam.pvalue.AsList(p | table >> beam.Create([1, 2, 3]))] if table else []
        if looks:
            seen = numbers | "Look" >> beam.Map(lambda n, *lists: (n, [len(each) for each in lists]), *sides)
            _ = seen | "Note looks" >> beam.Map(note, str(looked))
        weight = {"weight": beam.pvalue.AsSingleton(p | "Weight" >> beam.Create([5]))} if weighs else {}
        ordinals = numbers | beam.Map(lambda n: ("all", n)) | "Keep" >> beam.ParDo(Weighed(), **weight)
        _ = ordinals | "Note kept" >> beam.Map(note, str(kept))
        return p.run()

    def goes_on(until: int, table: str, *options: str, looks: int, weighs: bool = False) -> None:
        feed(source, until)
        result = submit(table, *options, looks=looks > 0, weighs=weighs)
        while_running(result, lambda: len(noted(kept)) == until and len(noted(looked)) >= looks)
        result.suspend()

    goes_on(5, "Table", looks=5)
    goes_on(10, "", looks=0)
    goes_on(15, "Table", looks=10)
    with pytest.raises(IncompatibleStateError, match=r"source\(s\) 'Table/"):
        submit("Names", looks=True).wait_until_finish()
    with pytest.raises(IncompatibleStateError, match=r"stage 'Table/.*' .*side input"):
        submit("Names", "--stage_mapping=Table=Names", looks=True).wait_until_finish()
    goes_on(20, "Names", "--allow_dropped_state", looks=15)
    goes_on(25, "", looks=20)
    goes_on(30, "", looks=25, weighs=True)
    whole = [[3]] * 5
    assert [sizes for _, sizes in sorted(noted(looked))] == [*whole, *whole, *whole, *([[]] * 10)]
    assert sorted(noted(kept)) == [(n, n + 1, 5 if n >= 25 else None) for n in range(30)]


class Weighed(beam.DoFn):
    SEEN = userstate.CombiningValueStateSpec("seen", sum)

    def process(
        self, pair: tuple[str, int], seen: Any = beam.DoFn.StateParam(SEEN), weight: int | None = None
    ) -> Iterator[Any]:
        seen.add(1)
        yield pair[1], seen.read(), weight


class _From(beam.PTransform):
    """A fed source with its own label."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def expand(self, pbegin: Any) -> Any:
        return fed(pbegin, self._folder)


def _text_of(pair: tuple[int, list[int]], names: dict[int, str]) -> str:
    return f"{names[pair[0]]} {sorted(pair[1])}"


@pytest.mark.contract("END-02", "API-06", "PLAN-03", "OPS-02")
def test_drained_job_fires_all_windows_and_stays_drained(tmp_path: Path) -> None:
    job = Job(tmp_path)
    feed(job.source, 15)
    result = job.submit()
    while_running(result, lambda: len(noted(job.read)) == 15)
    assert result.drain("last") in ("DRAINING", "DRAINED")
    assert result.drain() in ("DRAINING", "DRAINED"), "a drain without a name joins the running one"
    with pytest.raises(RequestRefusedError, match=r"draining|drained"):
        result.suspend()
    feed(job.source, 30)
    assert result.wait_until_finish() == "DRAINED"
    assert job.panes() == expected(0, 15)
    assert job.submit().wait_until_finish() == "DRAINED"
    with pytest.raises(StoreError, match="drained"):
        resume(f"{job.state}/savepoints/last").wait_until_finish()
    assert job.panes() == expected(0, 15)


@pytest.mark.contract("API-06", "OPS-02")
def test_resume_of_savepoint_reads_again_what_follows_it(tmp_path: Path) -> None:
    job = Job(tmp_path)
    feed(job.source, 12)
    first = job.submit()
    while_running(first, lambda: len(noted(job.read)) == 12)
    safe = first.suspend("safe")
    feed(job.source, 15)
    second = resume(str(job.state))
    while_running(second, lambda: len(noted(job.read)) == 15)
    second.suspend()
    with pytest.raises(LaterMicroBatchesError, match="--discard_later_micro_batches"):
        resume(safe).wait_until_finish()
    feed(job.source, 20, end=True)
    assert resume(safe, ["--discard_later_micro_batches"]).wait_until_finish() == "DONE"
    assert sorted(noted(job.read)) == [*range(12), *sorted([12, 13, 14] * 2), *range(15, 20)]
    assert job.panes()[-3:] == expected(10, 20)


@pytest.mark.contract("END-04", "OPS-02")
def test_job_cancelled_by_folder_resumes_from_last_commit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    job = Job(tmp_path)
    feed(job.source, 12)
    result = job.submit()
    while_running(result, lambda: len(job.panes()) == 3)
    result.savepoint()
    cancelled = CliRunner().invoke(main.main, ["cancel", str(job.state)])
    assert cancelled.stdout == f"{job.state} is CANCELLED\n", cancelled.output
    assert result.wait_until_finish() == "CANCELLED"
    assert f"{result.plan.name}: cancelled at micro-batch " in caplog.text
    feed(job.source, 20, end=True)
    done = CliRunner().invoke(main.main, ["resume", str(job.state)])
    assert done.stdout.endswith(" is DONE\n"), done.output
    assert job.panes() == expected(0, 20)


def test_invalid_requests_are_refused(tmp_path: Path) -> None:
    p = beam.Pipeline(runner=ArcbeamRunner())
    _ = p | beam.Create([1])
    bounded = p.run()
    with pytest.raises(RequestRefusedError) as caught:
        bounded.drain()
    check_message("drain-refused-batch", str(caught.value), job=bounded.plan.name)
    bounded.wait_until_finish()
    feed(tmp_path, 1)
    q = beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions(["--streaming"]))
    _ = fed(q, tmp_path)
    own = q.run()
    with pytest.raises(RequestRefusedError) as caught:
        own.savepoint()
    check_message("savepoint-refused-temporary", str(caught.value), job=own.plan.name)
    assert own.drain() in ("DRAINING", "DRAINED")
    assert own.wait_until_finish() == "DRAINED"
    reported = [message.text for message in own.messages()]
    assert "the job is DRAINING" in reported
    assert [text for text in reported if text.startswith("micro-batch ") and "elements, watermark " in text]
