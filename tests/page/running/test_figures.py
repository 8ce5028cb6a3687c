"""The figures of random jobs: what page, `status`, its JSON, `/metrics` and Beam's metrics show, at each commit and
during long micro-batches, is compared with a count of the jobs' own elements, and with each other. Workers and drivers
die.

Only Spark is replaced; see `tests.spark.streaming.inprocess`.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
from apache_beam.metrics import monitoring_infos
from typing_extensions import override

from arcbeam.cli.status import _COLUMNS, _cells
from arcbeam.console.progressline import JobProgress
from arcbeam.harness.bundle.metrics import DROPPED_LATE, parsed
from arcbeam.monitoring.prometheus import MonitoredJob, exposed
from arcbeam.page import views
from arcbeam.spark.streaming import streamingjob
from arcbeam.spark.streaming.streamingjob import StreamRun
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.log.chain import known, read_newest
from arcbeam.streaming.assignment import TaskAssignment
from arcbeam.streaming.interfaces import JobListener
from arcbeam.streaming.status import moment, words
from arcbeam.streaming.status.folder import status_in
from arcbeam.streaming.status.headline import headline
from arcbeam.streaming.status.records import status_from
from arcbeam.streaming.status.status import Status, as_record
from tests.page.running.countedjobs import COUNTED, GROUPS, WINDOWS, DriverDeath, Random, died
from tests.spark.streaming.inprocess import InProcess, run_of, without_spark

pytestmark = pytest.mark.contract("OPS-04")

_SECONDS_MAX: Final = 120.0
_SLACK: Final = 20.0
"""Seconds that two looks at a job may be apart on a busy machine."""


@dataclass
class Before:
    """What a job had counted when its driver began.

    Attributes:
        emitted: elements of its source.
        read: elements that had arrived at each stage.
        late: dropped elements.
        opened_at: that time.
        commits: whether the driver has committed a micro-batch.
    """

    emitted: int = 0
    read: dict[str, int] = field(default_factory=dict)
    late: int = 0
    opened_at: int = 0
    commits: bool = False


class Watch(JobListener):
    """Compares all views at each commit.

    Args:
        folder: of the job.
        of: the job.

    Attributes:
        looks: the number of comparisons.
        inside: of these, during micro-batches.
        late: of each branch, at the last commit.
    """

    def __init__(self, folder: Path, of: Random) -> None:
        self.blobs, self._of = FolderBlobs(folder, sync=False), of
        self.run: StreamRun | None = None
        self.looks, self.inside, self.opened_at, self._committed = 0, 0, 0, 0
        self._before = self._former = Before()
        self.late: Counter[str] = Counter()
        self.problem: BaseException | None = None

    @override
    def opened(self) -> None:
        self.opened_at = self._committed = known(read_newest(self.blobs)).time  # type: ignore[arg-type]
        if self._before.commits:
            self._former = self._before
        stages = status_in(self.blobs).stages
        self._before = Before(
            COUNTED.committed()[0],
            {stage.stage: stage.total.read for stage in stages if stage.total},
            sum(stage.total.late for stage in stages if stage.total),
            self.opened_at,
        )

    @override
    def streaming(self, line: str) -> None:
        COUNTED.commit()
        self._look()

    def during(self) -> None:
        """Compare on another thread, while the micro-batch waits for it."""
        looked = threading.Event()

        def look() -> None:
            try:
                self._look()
                self.inside += 1
            finally:
                looked.set()

        threading.Thread(target=look, daemon=True).start()
        assert looked.wait(_SECONDS_MAX)

    def _look(self) -> None:
        # An error here would be the job's.
        try:
            self._compare()
        except BaseException as e:
            self.problem = self.problem or e
            raise

    def _compare(self) -> None:
        assert self.run is not None
        requested = time.time() * 1e6
        mine = self.run.status()
        assert mine is not None
        stored = status_in(self.blobs)
        answered = time.time() * 1e6
        self._commits(mine, stored)
        self._gaps(mine, stored)
        self._rates((requested, answered), mine, stored)
        samples, others = (
            _samples(exposed([MonitoredJob("j", each, JobProgress((), 0, 0))], round(answered)))
            for each in (mine, status_from(json.loads(json.dumps(as_record(stored)))))
        )
        # A driver writes its note, with the number of its failures, from time to time.
        failed = 'arcbeam_failed_tries_total{job="j"}'
        assert others.pop(failed, 0) <= samples.pop(failed) == COUNTED.kills
        assert samples == others
        self._counts(mine, stored, samples)
        self.looks += 1

    def _commits(self, *statuses: Status) -> None:
        for status in statuses:
            assert status.micro_batch == statuses[0].micro_batch
            assert status.committed == statuses[0].committed
            assert status.time <= status.committed <= time.time() * 1e6
            assert self._committed <= status.committed
        self._committed = statuses[0].committed

    def _gaps(self, *statuses: Status) -> None:
        for status in statuses:
            for shown, watermark in [(status.behind, status.watermark)] + [
                (stage.behind, stage.input) for stage in status.stages
            ]:
                now = words.gap_of(status, watermark)
                assert (shown is None) == (now is None)
                if shown is not None and now is not None:
                    assert 0 <= shown <= now <= shown + _SLACK * 1e6
                    assert now == pytest.approx(max(0, time.time() * 1e6 - watermark), abs=_SLACK * 1e6)
        page = dict(views.figures(statuses[0]))["watermark gap"]
        assert page.text == views.gap(statuses[0], statuses[0].watermark).text

    def _rates(self, between: tuple[float, float], *statuses: Status) -> None:
        for status in statuses:
            # A driver that has committed nothing yet shows the last minute of the one before.
            begins = self._committed == self.opened_at
            before = self._former if begins else self._before
            before.commits |= not begins
            if not before.commits:
                assert status.window is status.rate is None
                continue
            if status.mode in moment.STOPPED:
                assert status.rate is None
                assert all(stage.read_rate is None for stage in status.stages)
                continue
            # All drivers together are younger than a minute.
            assert status.window == status.committed - before.opened_at
            # After a commit, a rate falls with the clock once that takes longer than the time before it.
            since = [max(status.window, at - status.committed) / 1e6 for at in between]
            emitted = COUNTED.committed()[0] - before.emitted
            assert emitted / since[1] - 0.01 <= status.rate <= emitted / since[0] + 0.01
            for stage in status.stages:
                total = stage.total.read - before.read.get(stage.stage, 0)
                assert total / since[1] - 0.01 <= stage.read_rate <= total / since[0] + 0.01
        shown = dict(views.figures(statuses[0]))["rate"].text
        rate = statuses[0].rate
        assert shown.split()[0] == ("–" if rate is None else f"{rate:,.0f}")

    def _counts(self, mine: Status, stored: Status, samples: dict[str, float]) -> None:
        assert self.run is not None
        emitted, passed, results = COUNTED.committed()
        assert samples['arcbeam_source_elements_total{job="j"}'] == emitted
        infos = [info for info in parsed(self.run.metrics()) if info.labels.get("NAME") == DROPPED_LATE.name]
        dropped: Counter[str] = Counter()
        for info in infos:
            dropped[info.labels["PTRANSFORM"]] += monitoring_infos.extract_counter_value(info)
        rows = {row.name: row for row in views.stage_rows(stored)}
        late = 0
        for stage, other in zip(mine.stages, stored.stages, strict=True):
            name, total, micro_batch = stage.stage, stage.total, stage.micro_batch
            assert (total, micro_batch, stage.recent) == (other.total, other.micro_batch, other.recent)
            late += total.late
            for what, count in (("in", "read"), ("out", "written")):
                assert samples[f'arcbeam_stage_elements_total{{direction="{what}",job="j",stage="{name}"}}'] == getattr(
                    total, count
                )
            assert samples[f'arcbeam_stage_late_elements_total{{job="j",stage="{name}"}}'] == total.late
            printed = dict(zip(_COLUMNS, _cells(stored, other), strict=True))
            assert printed["late"] == rows[name].late.text == f"{total.late:,}"
            assert printed["in"].startswith(f"{micro_batch.read:,} (")
            assert rows[name].read.text == f"{micro_batch.read:,}"
            assert rows[name].read.hint.endswith(f"; {total.read:,} since the job began")
        assert sum(dropped.values()) == late - self._before.late
        if not mine.stages:
            # Perhaps some drivers have opened the folder.
            assert (mine.has_begun, emitted, passed) == (False, 0, 0), "nothing is committed yet"
            assert {headline(mine).word, headline(stored).word} <= {"Starting", "Problem"}
            return
        for windows, group in self._of.branches:
            branch = f"{windows}{group}"
            stage = next(each for each in mine.stages if _is_grouping(each.stage, branch))
            assert stage.total.read == passed, branch
            arrived = passed * WINDOWS[windows][1]
            out = sum(count for name, count in results if name == branch)
            # The others wait for the end of their window.
            assert out + stage.total.late <= arrived, branch
            self.late[branch] = stage.total.late


def _is_grouping(stage: str, branch: str) -> bool:
    """Return whether a stage gets the elements of a branch: it begins with its grouping."""
    return re.search(rf"(^|[/ ]){branch}(/|$| )", stage) is not None and f"In{branch}" not in stage


def _samples(text: str) -> dict[str, float]:
    """Return the samples of a text for Prometheus."""
    samples = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in samples}


class Dying(InProcess):
    """A cluster whose workers, or driver, die when all tasks have run."""

    @override
    def _levels(self, order: TaskAssignment) -> Iterator[bytes]:
        yield from list(super()._levels(order))
        if COUNTED.end is not None:
            raise died(COUNTED.end)


def check(seed: int, folder: Path) -> Watch:
    """Run a random job, and compare; return its watch."""
    COUNTED.reset()
    job = Random(seed)
    watch = Watch(folder / "job", job)
    with without_spark(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Dying, "fault", staticmethod(lambda order: job.fault(order, watch.during)))
        patch.setattr(streamingjob, "SparkCluster", Dying)
        while True:
            watch.run = run_of(job.build, folder, watch)
            try:
                watch.run.run()
                break
            except DriverDeath:
                continue
    assert watch.problem is None
    assert sorted(COUNTED.emitted) == sorted(COUNTED.passed) == list(range(sum(len(rows) for rows, _ in job.batches)))
    for windows, group in job.branches:
        branch = f"{windows}{group}"
        out = sum(count for name, count in COUNTED.results if name == branch)
        assert out + watch.late[branch] == len(COUNTED.emitted) * WINDOWS[windows][1], branch
    return watch


@pytest.mark.parametrize("seed", range(4))
def test_figures_equal_counts_of_elements_in_all_views(seed: int, tmp_path: Path) -> None:
    watch = check(seed, tmp_path)
    assert watch.looks - watch.inside >= 2
    assert watch.inside >= 1
    assert COUNTED.deaths >= 1


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4, 60))
def test_figures_of_more_random_jobs_equal_counts(seed: int, tmp_path: Path) -> None:
    check(seed, tmp_path)


def test_random_jobs_have_all_groupings() -> None:
    branches = [branch for seed in range(4) for branch in Random(seed).branches]
    assert {group for _, group in branches} == set(GROUPS)
    assert {windows for windows, _ in branches} == set(WINDOWS)
