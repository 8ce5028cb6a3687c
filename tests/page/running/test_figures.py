"""The figures of random jobs: what page, `status`, its JSON, `/metrics` and Beam's metrics show, at each commit, is
compared with a count of the jobs' own elements, and with each other.

Only Spark is replaced; see `tests.spark.streaming.inprocess`.
"""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import apache_beam as beam
import pytest
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.metrics import monitoring_infos
from apache_beam.transforms import userstate, window
from apache_beam.utils.timestamp import Duration, Timestamp
from typing_extensions import override

from arcbeam.cli.status import _COLUMNS, _cells
from arcbeam.console.progressline import JobProgress
from arcbeam.errors import WorkerLostError
from arcbeam.harness.bundle.metrics import DROPPED_LATE, parsed
from arcbeam.monitoring.prometheus import exposed
from arcbeam.page import views
from arcbeam.runner.job import Follower
from arcbeam.spark.streaming import streamingjob
from arcbeam.spark.streaming.streamingjob import StreamRun
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.log.chain import known, read_newest
from arcbeam.streaming.assignment import TaskAssignment
from arcbeam.streaming.status import words
from arcbeam.streaming.status.folder import record_of
from arcbeam.streaming.status.records import status_from
from arcbeam.streaming.status.status import as_record
from tests.offsets import WholeUpTo
from tests.spark.streaming.inprocess import InProcess, run_of, without_spark

pytestmark = pytest.mark.contract("OPS-04")

Row = tuple[str, int, int]
"""Key, number, and event time in seconds."""
Batch = tuple[list[Row], int]
"""Rows that are emitted together, and the watermark after them in seconds."""
_SLACK: Final = 20.0
"""Seconds that two looks at a job may be apart on a busy machine."""


class Counted:
    """What the job's own code has counted, of attempts that count.

    Attributes:
        emitted: numbers from the source.
        passed: those that are no longer blocked by a side input.
        results: counts of elements, by branch.
        kills: how many workers died.
        fails: whether a worker dies at the end of the micro-batch that runs.
    """

    def __init__(self) -> None:
        self.emitted: list[int] = []
        self.passed: list[int] = []
        self.results: list[tuple[str, int]] = []
        self.fails, self.kills = False, 0
        self._began: dict[int, tuple[int, int, int]] = {}

    def begin(self, micro_batch: int) -> bool:
        """Discard what earlier attempts of a micro-batch have counted; return whether there was one."""
        again = micro_batch in self._began
        now = len(self.emitted), len(self.passed), len(self.results)
        emitted, passed, results = self._began.setdefault(micro_batch, now)
        del self.emitted[emitted:], self.passed[passed:], self.results[results:]
        return again


COUNTED = Counted()


class Batches(beam.DoFn):
    """Emits a batch in each call, and then its watermark."""

    def __init__(self, batches: list[Batch]) -> None:
        self._batches = batches

    @beam.DoFn.unbounded_per_element()
    def process(
        self,
        element: int,
        tracker: Any = beam.DoFn.RestrictionParam(WholeUpTo()),
        watermark: Any = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider()),
    ) -> Iterator[Any]:
        n = tracker.current_restriction().start
        if not tracker.try_claim(n):
            return
        rows, after = self._batches[n]
        for row in rows:
            yield window.TimestampedValue(row, row[2])
        watermark.set_watermark(Timestamp(after))
        tracker.defer_remainder(Duration(micros=1_000))


def emitted(row: Row) -> Row:
    COUNTED.emitted.append(row[1])
    return row


def keyed(row: Row, one: int) -> tuple[str, int]:
    COUNTED.passed.append(row[1])
    return row[0], one


def result(branch: str, count: int) -> None:
    COUNTED.results.append((branch, count))


class Ones(beam.CombineFn):
    """A sum that is not known as one."""

    def create_accumulator(self) -> list[int]:
        return []

    def add_input(self, accumulator: list[int], value: int) -> list[int]:
        return [*accumulator, value]

    def merge_accumulators(self, accumulators: Iterable[list[int]]) -> list[int]:
        return [value for each in accumulators for value in each]

    def extract_output(self, accumulator: list[int]) -> int:
        return sum(accumulator)


class Passing(beam.DoFn):
    """Counts each element, and keeps a state of its window."""

    SEEN = userstate.CombiningValueStateSpec("seen", sum)

    def process(self, pair: tuple[str, int], seen: Any = beam.DoFn.StateParam(SEEN)) -> Iterator[Any]:
        seen.add(1)
        yield pair[0], 1


_WINDOWS: Final[dict[str, tuple[Any, int]]] = {
    "Fixed": (window.FixedWindows(10), 1),
    "Sliding": (window.SlidingWindows(10, 5), 2),
    "Sessions": (window.Sessions(3), 1),
}
"""Each with the number of windows of an element."""
_GROUPS: Final = {
    "Sum": beam.CombinePerKey(sum),
    "Own": beam.CombinePerKey(Ones()),
    "Grouped": beam.GroupByKey() | beam.MapTuple(lambda key, values: (key, len(list(values)))),
    "All": beam.Values() | beam.CombineGlobally(sum).without_defaults() | beam.Map(lambda count: ("", count)),
    "Kept": beam.ParDo(Passing()),
}


class Random:
    """A random job.

    Attributes:
        batches: of its source.
        branches: names of windows and groupings.
    """

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        self.chance = chance
        self.batches: list[Batch] = []
        watermark, number = 0, 0
        for _ in range(chance.choice([4, 8])):
            rows = []
            for _ in range(chance.choice([1, 12, 90])):
                # Some are far behind the watermark.
                rows.append((chance.choice("abcd"), number, max(0, watermark + chance.randrange(-25, 20))))
                number += 1
            watermark += chance.randrange(0, 15)
            self.batches.append((rows, watermark))
        pairs = [(windows, group) for windows in _WINDOWS for group in _GROUPS]
        self.branches = chance.sample(pairs, 4)
        self.lateness = chance.choice([0, 6])

    def build(self, p: beam.Pipeline) -> None:
        """Build the pipeline."""
        source = p | "Where" >> beam.Create([len(self.batches)], reshuffle=False)
        rows = source | "Read" >> beam.ParDo(Batches(self.batches)) | "Emitted" >> beam.Map(emitted)
        one = p | "One" >> beam.Create([1], reshuffle=False)
        one_each = beam.Map(keyed, beam.pvalue.AsSingleton(one))
        ones = rows | "Ones" >> one_each.with_output_types(tuple[str, int])
        for windows, group in self.branches:
            name = f"{windows}{group}"
            windowed = ones | f"In{name}" >> beam.WindowInto(_WINDOWS[windows][0], allowed_lateness=self.lateness)
            found = windowed | name >> _GROUPS[group]
            _ = found | f"Out{name}" >> beam.MapTuple(lambda key, count, name=name: result(name, count))

    def fault(self, order: TaskAssignment) -> BaseException | None:
        """Kill a worker at the begin or the end of some micro-batches."""
        again = COUNTED.begin(order.plan.micro_batch)
        COUNTED.fails = False
        if again or self.chance.random() < 0.6:
            return None
        COUNTED.kills += 1
        if self.chance.random() < 0.5:
            return WorkerLostError("a worker died", died=True, step="Read")
        COUNTED.fails = True
        return None


class Watch(Follower):
    """Compares all views at each commit.

    Args:
        folder: of the job.
        of: the job.

    Attributes:
        looks: the number of comparisons.
        late: of each branch, at the last commit.
    """

    def __init__(self, folder: Path, of: Random) -> None:
        self.blobs, self._of = FolderBlobs(folder, sync=False), of
        self.run: StreamRun | None = None
        self.looks, self.opened_at, self._committed = 0, 0, 0
        self.late: Counter[str] = Counter()
        self.problem: BaseException | None = None

    @override
    def opened(self) -> None:
        self.opened_at = self._committed = known(read_newest(self.blobs)).time  # type: ignore[arg-type]

    @override
    def streaming(self, line: str) -> None:
        # An error here would be the job's.
        try:
            self._compare()
        except BaseException as e:
            self.problem = self.problem or e
            raise

    def _compare(self) -> None:
        assert self.run is not None
        status = self.run.status()
        assert status is not None
        mine, stored = as_record(status), record_of(self.blobs)
        self._commits(mine, stored)
        self._gaps(mine, stored)
        self._rates(mine, stored)
        samples = _samples(exposed("j", status, JobProgress((), 0, 0)))
        others = _samples(exposed("j", status_from(stored), JobProgress((), 0, 0)), samples)
        # A driver writes its note, with the number of its failures, from time to time.
        failed = 'arcbeam_failed_tries_total{job="j"}'
        assert others.pop(failed, 0) <= samples.pop(failed) == COUNTED.kills
        assert samples == others
        self._counts(mine, stored, samples)
        self.looks += 1

    def _commits(self, *records: Any) -> None:
        for record in records:
            assert record["micro_batch"] == records[0]["micro_batch"]
            assert record["committed"] == records[0]["committed"] == words.committed_at(record)
            assert record["time"] <= record["committed"] <= time.time() * 1e6
            assert self._committed <= record["committed"]
        self._committed = records[0]["committed"]

    def _gaps(self, *records: Any) -> None:
        for record in records:
            for shown, watermark in [(record["behind"], record["watermark"])] + [
                (stage["behind"], stage["input"]) for stage in record["stages"]
            ]:
                now = words.gap_of(record, watermark)
                assert (shown is None) == (now is None)
                if shown is not None and now is not None:
                    assert 0 <= shown <= now <= shown + _SLACK * 1e6
                    assert now == pytest.approx(max(0, time.time() * 1e6 - watermark), abs=_SLACK * 1e6)
        page = dict(views.figures(records[0]))["watermark gap"]
        assert page.text == views.gap(records[0], records[0]["watermark"]).text or "behind" in page.text

    def _rates(self, *records: Any) -> None:
        for record in records:
            # The job is younger than a minute.
            assert record["window"] == record["committed"] - self.opened_at
            since = max(record["window"], time.time() * 1e6 - record["committed"]) / 1e6
            assert record["rate"] == pytest.approx(len(COUNTED.emitted) / since, rel=0.05, abs=0.01)
            for stage in record["stages"]:
                total = stage["total"]["read"]
                assert stage["read_rate"] == pytest.approx(total / since, rel=0.05, abs=0.01)
        shown = dict(views.figures(records[0]))["rate"].text
        assert shown.startswith("–") or shown.split()[0] == f"{records[0]['rate']:,.0f}"

    def _counts(self, mine: Any, stored: Any, samples: dict[str, float]) -> None:
        assert self.run is not None
        assert samples['arcbeam_source_elements_total{job="j"}'] == len(COUNTED.emitted)
        infos = [info for info in parsed(self.run.metrics()) if info.labels.get("NAME") == DROPPED_LATE.name]
        dropped: Counter[str] = Counter()
        for info in infos:
            dropped[info.labels["PTRANSFORM"]] += monitoring_infos.extract_counter_value(info)
        rows = {row.name: row for row in views.stage_rows(stored)}
        late = 0
        for stage, other in zip(mine["stages"], stored["stages"], strict=True):
            name, total, micro_batch = stage["stage"], stage["total"], stage["micro_batch"]
            assert (total, micro_batch, stage["recent"]) == (other["total"], other["micro_batch"], other["recent"])
            late += total["late"]
            for what, count in (("in", "read"), ("out", "written")):
                assert (
                    samples[f'arcbeam_stage_elements_total{{job="j",stage="{name}",direction="{what}"}}']
                    == total[count]
                )
            assert samples[f'arcbeam_stage_late_total{{job="j",stage="{name}"}}'] == total["late"]
            printed = dict(zip(_COLUMNS, _cells(stored, other), strict=True))
            assert printed["late"] == rows[name].late.text == f"{total['late']:,}"
            assert printed["in"].startswith(f"{micro_batch['read']:,} (")
            assert rows[name].read.text == f"{micro_batch['read']:,}"
            assert rows[name].read.hint.endswith(f"; {total['read']:,} since the job began")
        assert sum(dropped.values()) == late
        for windows, group in self._of.branches:
            branch = f"{windows}{group}"
            stage = next(each for each in mine["stages"] if _is_grouping(each["stage"], branch))
            assert stage["total"]["read"] == len(COUNTED.passed), branch
            came = len(COUNTED.passed) * _WINDOWS[windows][1]
            out = sum(count for name, count in COUNTED.results if name == branch)
            # The others wait for the end of their window.
            assert out + stage["total"]["late"] <= came, branch
            self.late[branch] = stage["total"]["late"]


def _is_grouping(stage: str, branch: str) -> bool:
    """Return whether a stage gets the elements of a branch: it begins with its grouping."""
    return re.search(rf"(^|[/ ]){branch}(/|$| )", stage) is not None and f"In{branch}" not in stage


def _samples(text: str, like: dict[str, float] | None = None) -> dict[str, float]:
    """Return the samples of a text for Prometheus.

    Args:
        text: the text.
        like: samples of a moment before. Gaps and rates, which depend on the moment, are as there if they are near.
    """
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            found[name] = float(value)
    for name, value in (like or {}).items():
        tolerance = _SLACK if "behind_seconds" in name else abs(value) * 0.05 + 0.01 if "rate" in name else 0.0
        if tolerance and name in found and abs(found[name] - value) <= tolerance:
            found[name] = value
    return found


class Dying(InProcess):
    """A cluster whose workers die when all tasks have run."""

    @override
    def _levels(self, order: TaskAssignment) -> Iterator[bytes]:
        yield from list(super()._levels(order))
        if COUNTED.fails:
            raise WorkerLostError("a worker died", died=True, step="Read")


def check(seed: int, folder: Path) -> tuple[int, int]:
    """Run a random job, and compare; return the number of commits, and of late elements."""
    global COUNTED
    COUNTED = Counted()
    job = Random(seed)
    watch = Watch(folder / "job", job)
    with without_spark(job.fault), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Dying, "fault", staticmethod(job.fault))
        patch.setattr(streamingjob, "SparkCluster", Dying)
        watch.run = run_of(job.build, folder, watch)
        watch.run.run()
    assert watch.problem is None
    assert sorted(COUNTED.emitted) == sorted(COUNTED.passed) == list(range(sum(len(rows) for rows, _ in job.batches)))
    for windows, group in job.branches:
        branch = f"{windows}{group}"
        out = sum(count for name, count in COUNTED.results if name == branch)
        assert out + watch.late[branch] == len(COUNTED.emitted) * _WINDOWS[windows][1], branch
    return watch.looks, sum(watch.late.values())


@pytest.mark.parametrize("seed", range(4))
def test_figures_equal_counts_of_elements_in_all_views(seed: int, tmp_path: Path) -> None:
    looks, _ = check(seed, tmp_path)
    assert looks >= 2


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4, 60))
def test_figures_of_more_random_jobs_equal_counts(seed: int, tmp_path: Path) -> None:
    check(seed, tmp_path)


def test_random_jobs_have_all_groupings() -> None:
    branches = [branch for seed in range(4) for branch in Random(seed).branches]
    assert {group for _, group in branches} == set(_GROUPS)
    assert {windows for windows, _ in branches} == set(_WINDOWS)
