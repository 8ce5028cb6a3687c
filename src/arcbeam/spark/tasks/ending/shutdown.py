"""Call `shutdown` of the DoFns that have it, when a job has ended successfully.

Owns the short Spark jobs that reach them, stage by stage, from sources to sinks. Each worker that holds such a stage
gets a call. If no worker holds one, the call is made on a new instance. Errors are reported and do not keep a job from
ending.
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
    """A stage with DoFns that have `shutdown`.

    Attributes:
        stage: its id in the plan.
        steps: the DoFns' transforms, for display.
        opens: opens the stage in a worker; returns None if no DoFn of it has `shutdown`.
        workers: the workers that hold it, as "host:pid".
    """

    stage: str
    steps: tuple[str, ...]
    opens: Callable[[], Any]
    workers: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return "shutdown of " + (", ".join(map(repr, self.steps)) or "the DoFns")


@dataclass(frozen=True, slots=True)
class ShutDownTask:
    """Calls `shutdown` in the worker on which it lands, and reports that worker.

    Attributes:
        job: id of the job.
        stages: ids of stages, from sources to sinks.
        wait: seconds to occupy the worker, so that the other tasks land on other workers.
        opens: functions that open new instances of the stages for the call; empty: use those that the worker has.
    """

    job: str
    stages: tuple[str, ...]
    wait: float = 0.0
    opens: tuple[Callable[[], Any], ...] = ()

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the task: `mapInArrow` calls this."""
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
        spark: the session in which the job ran.
        job: id of the job.
        slots: how many tasks Spark runs concurrently.
        seconds: the time limit for all calls.
        given_up: set when the caller stops waiting.
        name: the job's name in Spark's UI; "": its id.
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
        """Call all of them, from sources to sinks, each on every existing instance; return the errors as texts.

        Args:
            stages: producers first.
        """
        return [error for of in stages for error in self._errors_of(of, lambda of=of: self._call(of))]  # type: ignore[misc]

    def call_alone(self, stages: Sequence[Graceful]) -> list[str]:
        """Call all of them on new instances, if it is unknown which stages have it and which workers hold them."""
        if not stages:
            return []
        all_of_them = Graceful("", tuple(step for of in stages for step in of.steps), stages[0].opens)
        return self._errors_of(all_of_them, lambda: self._alone(stages))

    def _errors_of(self, of: Graceful, call: Callable[[], list[str]]) -> list[str]:
        if self._is_over():
            reason = (
                "the driver stopped waiting for it"
                if self._given_up.is_set()
                else f"its time limit of {self._seconds:g} s is reached"
            )
            return [f"{of} was not called: {reason}"]
        try:
            return call()
        except TimeoutError:
            given_up = self._given_up.is_set()
            return [f"{of} did not end{', and was abandoned' if given_up else f' within {self._seconds:g} s'}"]
        except Exception as e:
            _LOG.debug("could not call %s", of, exc_info=True)
            (why, *_) = texts.safe_text(str, e).strip().splitlines() or [""]
            return [f"could not call {of}: {type(e).__name__}: {why}"]

    def _call(self, of: Graceful) -> list[str]:
        left, called, errors = set(of.workers), 0, list[str]()
        for attempt in range(_TRIES):
            # SUBTLE: as with teardown, short tasks reach all idle workers; later attempts occupy each worker for
            # longer.
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
        """Return the rows of the tasks.

        Raises:
            TimeoutError: the time limit is reached. Another thread cancels the Spark job, because that may take as long
                as killing a Python worker.
        """
        # A separate tag: cancelling the job's Spark jobs must not cancel this one.
        tag = f"{self._job}-shutdown"
        frame = self._spark.range(0, tasks, 1, tasks).mapInArrow(Guarded(task).__call__, _SCHEMA)
        rows = collected_unless(self._spark, frame, tag, f"{self._name}: shutdown", self._is_over)
        return [(str(row[0]), int(row[1]), str(row[2])) for row in rows]

    def _is_over(self) -> bool:
        return self._given_up.is_set() or time.monotonic() >= self._until
