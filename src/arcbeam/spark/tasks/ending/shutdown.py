"""Calling `shutdown` of the DoFns that offer it, when a job has ended well.

Owns the short Spark jobs that reach them: stage by stage, from sources to sinks, in each worker that holds one; and
where none does, on an instance of its own. What goes wrong is told, and keeps no job from its end.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from arcbeam.model import texts
from arcbeam.spark.tasks import workerlog
from arcbeam.spark.tasks.collecting import collected_unless
from arcbeam.spark.tasks.failure import Guarded
from arcbeam.spark.tasks.openstages import open_stages, worker_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG = logging.getLogger("arcbeam.shutdown")

_TRIES: Final = 4
_WAIT_SECONDS: Final = 0.03
_SCHEMA: Final = "worker string, called int, error string"


@dataclass(frozen=True, slots=True)
class Graceful:
    """A stage with DoFns that offer it.

    Attributes:
        stage: its id in the plan.
        steps: the DoFns', for people.
        opens: opens the stage in a worker, if one of its DoFns offers it; else None.
        workers: that hold it, as "host:pid".
    """

    stage: str
    steps: tuple[str, ...]
    opens: Callable[[], Any]
    workers: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return "shutdown of " + (", ".join(map(repr, self.steps)) or "the DoFns")


@dataclass(frozen=True, slots=True)
class ShutDownTask:
    """Calls it in whatever worker it lands on, and says which one that is.

    Attributes:
        job: whose.
        stages: ids, from sources to sinks.
        wait: seconds to keep the worker, so that the other tasks land on other workers.
        opens: open the stages, each for its call alone, instead of taking what the worker has.
    """

    job: str
    stages: tuple[str, ...]
    wait: float = 0.0
    opens: tuple[Callable[[], Any], ...] = ()

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What `mapInArrow` runs."""
        for _ in batches:
            pass
        called, errors = 0, [""]
        for id in self.stages if not self.opens else ():
            for stage in open_stages.of(self.job):
                if stage.id == id:
                    workerlog.at(self.job, id)
                    called += 1
                    errors += stage.shut_down()
        for opens in self.opens:
            if (stage := opens()) is not None:
                called += 1
                errors += stage.shut_down()
                errors += [f"teardown: {error}" for error in stage.close()]
        workerlog.at("", "")
        time.sleep(self.wait)
        rows = [worker_name()] * len(errors), pa.array([called] * len(errors), pa.int32()), errors
        yield pa.RecordBatch.from_arrays([pa.array(rows[0]), rows[1], pa.array(rows[2])], ["worker", "called", "error"])


class ShuttingDown:
    """The last calls of a job.

    Args:
        spark: where it ran.
        job: its id.
        slots: how many tasks Spark runs at once.
        seconds: how long all of it may take.
        given_up: is set when nobody waits for it any more.
        name: of the job, for people in Spark's UI; "": its id.
    """

    def __init__(
        self,
        spark: SparkSession,
        job: str,
        slots: int,
        seconds: float,
        given_up: threading.Event | None = None,
        *,
        name: str = "",
    ) -> None:
        self._name = name or job
        self._spark, self._job, self._slots, self._seconds = spark, job, slots, round(seconds, 1)
        self._until = time.monotonic() + seconds
        self._given_up = given_up or threading.Event()

    def call(self, stages: Sequence[Graceful]) -> list[str]:
        """Calls all of them, from sources to sinks, each on every instance that is there; what went wrong, for people.

        Args:
            stages: producers first.
        """
        return [error for of in stages for error in self._told(of, lambda of=of: self._call(of))]  # type: ignore[misc]

    def call_alone(self, stages: Sequence[Graceful]) -> list[str]:
        """The same of instances of their own, where it is not known which stages offer it and who holds them."""
        if not stages:
            return []
        all_of_them = Graceful("", tuple(step for of in stages for step in of.steps), stages[0].opens)
        return self._told(all_of_them, lambda: self._alone(stages))

    def _told(self, of: Graceful, call: Callable[[], list[str]]) -> list[str]:
        if self._is_over():
            over = "nobody waits for it" if self._given_up.is_set() else f"the {self._seconds:g} s for that are over"
            return [f"{of} is not called any more: {over}"]
        try:
            return call()
        except TimeoutError:
            given_up = self._given_up.is_set()
            return [f"{of} has not answered{', and was given up' if given_up else f' in {self._seconds:g} s'}"]
        except Exception as e:
            _LOG.debug("%s could not be called", of, exc_info=True)
            (why, *_) = texts.said(str, e).strip().splitlines() or [""]
            return [f"{of} could not be called: {type(e).__name__}: {why}"]

    def _call(self, of: Graceful) -> list[str]:
        left, called, errors = set(of.workers), 0, list[str]()
        for attempt in range(_TRIES):
            # SUBTLE: as with teardown, short tasks pass through all idle workers; later attempts hold each for longer.
            tasks = max(self._slots, len(of.workers)) * (2 + attempt)
            for worker, count, error in self._run(tasks, ShutDownTask(self._job, (of.stage,), _WAIT_SECONDS * attempt)):
                left.discard(worker)
                called += count
                errors += [f"{error} ({worker})"] if error else []
            if not left:
                break
        return errors or ([] if called else self._alone([of]))

    def _alone(self, stages: Sequence[Graceful]) -> list[str]:
        task = ShutDownTask(self._job, tuple(of.stage for of in stages), opens=tuple(of.opens for of in stages))
        return [f"{error} ({worker})" for worker, _, error in self._run(1, task) if error]

    def _run(self, tasks: int, task: ShutDownTask) -> list[tuple[str, int, str]]:
        """What the tasks have told.

        Raises:
            TimeoutError: the time is over. The Spark job is being cancelled, which nobody waits for: that may take as
                long as a Python worker takes to be killed.
        """
        # A tag of its own: who cancels the job's Spark jobs does not mean this one.
        tag = f"{self._job}-shutdown"
        frame = self._spark.range(0, tasks, 1, tasks).mapInArrow(Guarded(task).__call__, _SCHEMA)
        rows = collected_unless(self._spark, frame, tag, f"{self._name}: shutdown", self._is_over)
        return [(str(row[0]), int(row[1]), str(row[2])) for row in rows]

    def _is_over(self) -> bool:
        return self._given_up.is_set() or time.monotonic() >= self._until
