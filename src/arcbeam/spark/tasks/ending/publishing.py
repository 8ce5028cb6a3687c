"""Publish a job's committables in Python workers: a short Spark job, for micro-batches and for bounded jobs.

Owns how committables reach their publishers, and what a failure means. Must not know when they are committed, nor what
publishing is.
"""

from __future__ import annotations

import itertools
import logging
import pickle
import threading
import traceback
import warnings
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
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
from arcbeam.spark.session.remote import is_connect
from arcbeam.spark.tasks import failure, jobproperties, workerlog
from arcbeam.spark.tasks.collecting import collected
from arcbeam.spark.tasks.failure import Guarded
from arcbeam.spark.tasks.openstages import open_stages, publishing, worker_name
from arcbeam.store.jobtemp.location import JobLocation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LOG = logging.getLogger("arcbeam.publish")

_PUBLISHERS: Final = "publishers"
_PROPERTY: Final = "arcbeam.publish"
"""The Spark job's property with its `PublishOrder`."""
_COMMITTABLES_MAX: Final = threshold(256)
"""Maximum committables of one call."""
_SWEEP_SECONDS: Final = 60.0
"""For the last sweep, after the job's work has ended."""
_FRAMES_MAX: Final = cache_size(8)
WARNINGS_MAX: Final = 20
"""Maximum warnings of one call that are reported."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """What to remove: files that a job staged up to a micro-batch and that were not published."""

    job: str
    micro_batch: int


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a publisher: to publish or to sweep."""

    publisher: str
    committables: tuple[bytes, ...] = ()
    again: bool = False
    sweep: Sweep | None = None


@dataclass(frozen=True, slots=True)
class Publishers:
    """What processes that publish receive once.

    Attributes:
        job: id of the job's run.
        stages: the stages with publishers, by the publishers' names.
        quick: see `Settings.quick_tasks`.
        worker_setup: called in a worker before it opens the job's first stage, and perhaps again.
    """

    job: str
    stages: Mapping[str, Stage]
    quick: bool
    worker_setup: Callable[[], None] | None


def calls_of(committables: Mapping[str, Sequence[bytes]], *, again: bool) -> list[Call]:
    """Return the calls that publish committables.

    Args:
        committables: by the names of their publishers.
        again: whether they may have been published before.
    """
    return [
        Call(name, tuple(all[start : start + _COMMITTABLES_MAX]), again)
        for name, all in committables.items()
        for start in range(0, len(all), _COMMITTABLES_MAX)
    ]


_JOBS_MAX: Final = cache_size(8)
_known: OrderedDict[str, Publishers] = OrderedDict()
"""The publishers of the jobs that published last in this process, by the URL of their locations."""


@dataclass(frozen=True, slots=True)
class PublishOrder:
    """What a Spark job has to publish.

    Attributes:
        calls: all calls; a task makes those whose numbers it receives.
        run: name of this run; errors are recorded under it.
        last: whether no other calls follow. If so, the task closes what is open.
    """

    calls: tuple[Call, ...]
    run: str
    last: bool


@dataclass(frozen=True, slots=True)
class PublishTask:
    """Makes calls; pickled into the plan of their Spark job.

    Attributes:
        location: the job's temporary location.
        order: what to publish; None: it is in a property of the Spark job.
    """

    location: JobLocation
    order: PublishOrder | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the task: `mapInArrow` calls this. A row has warnings, and the worker's name if it must tear down."""
        order: PublishOrder = self.order or jobproperties.of_spark_job(_PROPERTY)
        numbers = [number for batch in batches for number in batch.column(0).to_pylist()]
        texts_of_calls = [text for number in numbers for text in self._made(order.calls[number], order.run)]
        job = publishing(self._read().job)
        if order.last:
            open_stages.close_job(job)
        holds = any(publisher.needs_teardown() for publisher in open_stages.of(job))
        yield pa.RecordBatch.from_arrays(
            [
                pa.array([texts_of_calls], pa.list_(pa.string())),
                pa.array([worker_name() if holds else None], pa.string()),
            ],
            names=["warnings", "holder"],
        )

    def _read(self) -> Publishers:
        found = _known.get(self.location.url)
        if found is None:
            found = pickle.loads(self.location.get_bytes(_PUBLISHERS))
            assert isinstance(found, Publishers)
            _known[self.location.url] = found
            while len(_known) > _JOBS_MAX:
                _known.popitem(last=False)
        _known.move_to_end(self.location.url)
        return found

    def _made(self, call: Call, run: str) -> list[str]:
        publishers = self._read()
        if publishers.quick:
            enable_quickack()
        workerlog.at(publishers.job, call.publisher)
        try:
            publisher = open_stages.get(
                publishing(publishers.job),
                call.publisher,
                partial(_opened, publishers.stages[call.publisher], call.publisher),
                self.location,
                publishers.worker_setup,
                quick=publishers.quick,
            )
            if call.sweep is not None:
                return self._swept(publisher, call.sweep)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                # Spark itself retries a task.
                context = TaskContext.get()
                again = call.again or (context is not None and context.attemptNumber() > 0)
                publisher.publish(call.committables, again=again)
        except BaseException as e:
            open_stages.close_job(publishing(publishers.job))
            described = usererrors.described(e, call.publisher)
            raise e if described is None else failure.record(self.location, run, described) from None
        found = dict.fromkeys(texts.safe_text(str, each.message) for each in caught)
        return [f"{call.publisher}: {text}" for text in list(found)[:WARNINGS_MAX]]

    @staticmethod
    def _swept(publisher: Any, sweep: Sweep) -> list[str]:
        try:
            publisher.sweep(sweep.job, sweep.micro_batch)
        except Exception as e:
            # What is left does no harm, and the next sweep tries again.
            _LOG.warning("%s", texts.safe_text(lambda e: "".join(traceback.format_exception(e)), e))
            return [f"{publisher.name}: could not remove all leftover files: {texts.safe_text(repr, e)}"]
        return []


def _opened(stage: Stage, name: str) -> Any:
    # SUBTLE: imported late, because the worker setup silences what the SDK logs at import.
    from arcbeam.harness.operations.publishoperation import OpenPublisher

    return OpenPublisher(stage, name)


class SparkPublishing:
    """Publishes for a job, on the driver.

    Args:
        spark: the session to run in.
        plan: the job's plan.
        job: id of the job's run.
        location: the job's temporary location.
        slots: how many tasks Spark runs concurrently.
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
        # By the number of calls.
        self._frames: OrderedDict[int, DataFrame] = OrderedDict()
        self._given_up = threading.Event()
        self.holders: set[str] = set()

    def use(self, spark: SparkSession) -> None:
        """Use another session instead of one that was lost."""
        self._spark = spark
        self._frames.clear()

    def publish(self, committables: Iterable[tuple[str, bytes]], *, again: bool) -> list[str]:
        """Publish all of them; callable from any thread, one call at a time.

        Args:
            committables: with the names of their publishers.
            again: whether they may have been published before.

        Returns:
            Warnings.

        Raises:
            ArcbeamError: not all are published; trying again is safe.
            LookupError: the plan has no such publisher.
        """
        of: dict[str, list[bytes]] = {}
        for name, committable in committables:
            of.setdefault(name, []).append(committable)
        if unknown := of.keys() - self._stages.keys():
            names = ", ".join(map(repr, sorted(unknown)))
            raise LookupError(f"there are committables for {names}, but this pipeline has no such publisher")
        return self._make(calls_of(of, again=again))

    def sweep(self, sweep: Sweep, *, last: bool, without: Collection[str] = ()) -> list[str]:
        """Remove what will never be published; like `publish`.

        Args:
            sweep: the micro-batch up to which to remove; its committables must be published.
            last: whether no other call follows.
            without: names of publishers that have done it.

        Returns:
            Warnings.
        """
        calls = [Call(name, sweep=sweep) for name in self._stages if name not in without]
        if not last:
            return self._make(calls)
        # Cancelling the job does not cancel this call, but its time is limited.
        over = threading.Event()
        timer = threading.Timer(_SWEEP_SECONDS, over.set)
        timer.daemon = True
        timer.start()
        try:
            return self._make(calls, last=True, given_up=over)
        finally:
            timer.cancel()

    def close(self) -> None:
        """Abandon what runs; callable from any thread."""
        self._given_up.set()

    def _make(self, calls: Sequence[Call], *, last: bool = False, given_up: threading.Event | None = None) -> list[str]:
        if not calls:
            return []
        if self._publishers is not None:
            self._location.put_bytes(_PUBLISHERS, pickle.dumps(self._publishers, protocol=5))
            self._publishers = None
        order = PublishOrder(tuple(calls), f"publish-{next(self._runs)}", last)
        text = None if is_connect(self._spark) else jobproperties.encoded(order)
        if text is not None and len(text) > jobproperties.PROPERTY_BYTES_MAX:
            text = None
        rows = collected(
            self._spark,
            self._frame(order, has_property=text is not None),
            # Not the job's own tag: interrupting a micro-batch's Spark job must not interrupt this one.
            publishing(self._job),
            self._location,
            sorted({call.publisher for call in calls}),
            about=f"{self._plan}: publish",
            stage=order.run,
            given_up=given_up or self._given_up,
            properties={} if text is None else {_PROPERTY: text},
        )
        self.holders |= {str(row["holder"]) for row in rows if row["holder"] is not None}
        return [str(text) for row in rows for text in row["warnings"]]

    def _frame(self, order: PublishOrder, *, has_property: bool) -> DataFrame:
        """Return the data frame of a Spark job. Those with a property share one, which Spark plans once."""
        count = len(order.calls)
        if not has_property:
            return self._built(count, order)
        if count not in self._frames:
            self._frames[count] = self._built(count, None)
            while len(self._frames) > _FRAMES_MAX:
                self._frames.popitem(last=False)
        return self._frames[count]

    def _built(self, calls: int, order: PublishOrder | None) -> DataFrame:
        frame: DataFrame = self._spark.range(0, calls, 1, min(calls, self._slots)).mapInArrow(
            Guarded(PublishTask(self._location, order)).__call__, "warnings array<string>, holder string"
        )
        return frame
