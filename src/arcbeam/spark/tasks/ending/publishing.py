"""Publishing what a job has committed, in Python workers: a short Spark job, for micro-batches and for bounded jobs.

Owns how committables travel to who publishes them, and what a failure means. Must not know when they are committed, nor
what publishing is.
"""

from __future__ import annotations

import itertools
import logging
import pickle
import threading
import traceback
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark import TaskContext

from arcbeam.harness.bundle import usererrors
from arcbeam.model import texts
from arcbeam.model.plan import Plan, Stage
from arcbeam.sizes import cache_size, threshold
from arcbeam.spark.session.loopback import enable_quickack
from arcbeam.spark.tasks import failure, workerlog
from arcbeam.spark.tasks.collecting import collected
from arcbeam.spark.tasks.failure import Guarded
from arcbeam.spark.tasks.openstages import open_stages, publishing, worker_name
from arcbeam.store.jobtemp.location import JobLocation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG = logging.getLogger("arcbeam.publish")

_GIVEN: Final = "publishers"
_TOGETHER: Final = threshold(256)
"""Committables of one call, at most."""
_SWEEP_SECONDS: Final = 60.0
"""For the last sweep, behind the end of the job's work."""
_MOST_SAID: Final = 20
"""Warnings of one call that are told, at most."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """What is to be removed: staged by a job up to a micro-batch, and published by nobody."""

    job: str
    micro_batch: int


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a publisher: to publish, or to sweep."""

    publisher: str
    committables: tuple[bytes, ...] = ()
    again: bool = False
    sweep: Sweep | None = None


@dataclass(frozen=True, slots=True)
class Publishers:
    """What processes that publish are given, once.

    Attributes:
        job: id of the job's run.
        stages: where the publishers are, by their names.
        quick: see `Settings.quick_tasks`.
        worker_setup: called in a worker before the job's first stage is opened there, and perhaps again.
    """

    job: str
    stages: Mapping[str, Stage]
    quick: bool
    worker_setup: Callable[[], None] | None


def calls_of(committables: Mapping[str, Sequence[bytes]], *, again: bool) -> list[Call]:
    """Return the calls that publish committables.

    Args:
        committables: by the names of their publishers.
        again: they may have been published before.
    """
    return [
        Call(name, tuple(all[start : start + _TOGETHER]), again)
        for name, all in committables.items()
        for start in range(0, len(all), _TOGETHER)
    ]


_MOST_JOBS: Final = cache_size(8)
_given: OrderedDict[str, Publishers] = OrderedDict()
"""Of the jobs that published here last, by the URL of their locations."""


@dataclass(frozen=True, slots=True)
class PublishTask:
    """Makes calls; pickled into the plan of their Spark job.

    Attributes:
        location: the job's temporary location.
        calls: all of them; a task makes those whose numbers it is given.
        run: which run this is; errors are recorded under it.
        last: no other calls follow: what is opened is closed again.
    """

    location: JobLocation
    calls: tuple[Call, ...]
    run: str
    last: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What `mapInArrow` runs; a row: what people should know, and the worker if it has something to tear down."""
        numbers = [number for batch in batches for number in batch.column(0).to_pylist()]
        told = [text for number in numbers for text in self._made(self.calls[number])]
        job = publishing(self._given().job)
        if self.last:
            open_stages.close_job(job)
        holds = any(publisher.needs_teardown() for publisher in open_stages.of(job))
        yield pa.RecordBatch.from_arrays(
            [pa.array([told], pa.list_(pa.string())), pa.array([worker_name() if holds else None], pa.string())],
            names=["told", "holder"],
        )

    def _given(self) -> Publishers:
        found = _given.get(self.location.url)
        if found is None:
            found = pickle.loads(self.location.get_bytes(_GIVEN))
            assert isinstance(found, Publishers)
            _given[self.location.url] = found
            while len(_given) > _MOST_JOBS:
                _given.popitem(last=False)
        _given.move_to_end(self.location.url)
        return found

    def _made(self, call: Call) -> list[str]:
        given = self._given()
        if given.quick:
            enable_quickack()
        workerlog.at(given.job, call.publisher)
        try:
            publisher = open_stages.get(
                publishing(given.job),
                call.publisher,
                partial(_opened, given.stages[call.publisher], call.publisher),
                self.location,
                given.worker_setup,
                quick=given.quick,
            )
            if call.sweep is not None:
                return self._swept(publisher, call.sweep)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                # Spark itself tries a task again.
                context = TaskContext.get()
                again = call.again or (context is not None and context.attemptNumber() > 0)
                publisher.publish(call.committables, again=again)
        except BaseException as e:
            open_stages.close_job(publishing(given.job))
            described = usererrors.described(e, call.publisher)
            raise e if described is None else failure.record(self.location, self.run, described) from None
        said = dict.fromkeys(texts.said(str, each.message) for each in caught)
        return [f"{call.publisher}: {text}" for text in list(said)[:_MOST_SAID]]

    @staticmethod
    def _swept(publisher: Any, sweep: Sweep) -> list[str]:
        try:
            publisher.sweep(sweep.job, sweep.micro_batch)
        except Exception as e:
            # What is left does no harm, and the next sweep looks again.
            _LOG.warning("%s", texts.said(lambda e: "".join(traceback.format_exception(e)), e))
            return [f"{publisher.name}: not all that is left over could be removed: {texts.said(repr, e)}"]
        return []


def _opened(stage: Stage, name: str) -> Any:
    # SUBTLE: imported late, for the prelude silences what the SDK says at import.
    from arcbeam.harness.operations.publishoperation import OpenPublisher

    return OpenPublisher(stage, name)


class SparkPublishing:
    """Who publishes for a job, on the driver.

    Args:
        spark: where.
        plan: of the job.
        job: id of its run.
        location: the job's temporary location.
        slots: how many tasks Spark runs at once.
        quick: see `Settings.quick_tasks`.
        worker_setup: see `Publishers`.

    Attributes:
        holders: the workers known to have publishers whose teardown does something.
    """

    def __init__(
        self,
        spark: SparkSession,
        plan: Plan,
        job: str,
        location: JobLocation,
        slots: int,
        *,
        quick: bool,
        worker_setup: Callable[[], None] | None,
    ) -> None:
        self._spark, self._plan, self._job, self._location, self._slots = spark, plan.name, job, location, slots
        self._stages = {name: stage for stage in plan.stages for name in stage.publishers}
        self._publishers: Publishers | None = Publishers(job, self._stages, quick, worker_setup)
        self._runs = itertools.count()
        self._given_up = threading.Event()
        self.holders: set[str] = set()

    def use(self, spark: SparkSession) -> None:
        """Another session takes the place of the one that is lost."""
        self._spark = spark

    def publish(self, committables: Iterable[tuple[str, bytes]], *, again: bool) -> list[str]:
        """Publishes them all; from any thread, one call at a time.

        Args:
            committables: with the names of their publishers.
            again: they may have been published before.

        Returns:
            What people should know of it.

        Raises:
            ArcbeamError: not all are published; trying again is safe.
            LookupError: the plan has no such publisher.
        """
        of: dict[str, list[bytes]] = {}
        for name, committable in committables:
            of.setdefault(name, []).append(committable)
        if unknown := of.keys() - self._stages.keys():
            names = ", ".join(map(repr, sorted(unknown)))
            raise LookupError(f"there is something to publish by {names}, which this pipeline does not have")
        return self._make(calls_of(of, again=again))

    def sweep(self, sweep: Sweep, *, last: bool) -> list[str]:
        """Removes what nobody will publish; as `publish`.

        Args:
            sweep: up to what; all of it that is to be published is.
            last: no other call follows.

        Returns:
            What did not go well.
        """
        calls = [Call(name, sweep=sweep) for name in self._stages]
        if not last:
            return self._make(calls)
        # Who cancels the job means no more than its work; but nobody waits for this for ever.
        over = threading.Event()
        timer = threading.Timer(_SWEEP_SECONDS, over.set)
        timer.daemon = True
        timer.start()
        try:
            return self._make(calls, last=True, given_up=over)
        finally:
            timer.cancel()

    def close(self) -> None:
        """Gives up what runs; from any thread."""
        self._given_up.set()

    def _make(self, calls: Sequence[Call], *, last: bool = False, given_up: threading.Event | None = None) -> list[str]:
        if not calls:
            return []
        if self._publishers is not None:
            self._location.put_bytes(_GIVEN, pickle.dumps(self._publishers, protocol=5))
            self._publishers = None
        run = f"publish-{next(self._runs)}"
        task = PublishTask(self._location, tuple(calls), run, last)
        frame = self._spark.range(0, len(calls), 1, min(len(calls), self._slots)).mapInArrow(
            Guarded(task).__call__, "told array<string>, holder string"
        )
        rows = collected(
            self._spark,
            frame,
            # Not the job's own: what interrupts a micro-batch's Spark job leaves this one alone.
            publishing(self._job),
            self._location,
            sorted({call.publisher for call in calls}),
            about=f"{self._plan}: publish",
            stage=run,
            given_up=given_up or self._given_up,
        )
        self.holders |= {str(row["holder"]) for row in rows if row["holder"] is not None}
        return [str(text) for row in rows for text in row["told"]]
