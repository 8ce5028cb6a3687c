"""Tear down what a finished job left in the Python workers.

Owns the short Spark job that reaches them. Best effort, as in Beam's contract: it does not wait for a worker that Spark
has ended or does not assign in time. The DoFns of such a worker are torn down when a task of another job arrives, or
never.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from arcbeam.spark.tasks.collecting import collected_unless
from arcbeam.spark.tasks.failure import Guarded
from arcbeam.spark.tasks.openstages import tear_down, worker_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG = logging.getLogger("arcbeam.teardown")

_TRIES = 4
_SECONDS = 5.0
_WAIT_SECONDS = 0.03
_SCHEMA = "worker string, error string"


@dataclass(frozen=True, slots=True)
class TearDownTask:
    """Tears down the job's processors in the worker on which it lands, and reports that worker.

    Attributes:
        job: id of the job.
        before: called before anything is torn down.
        order: ids of stages, in the order of their teardown in a worker.
        wait: seconds to occupy the worker, so that the other tasks land on other workers.
    """

    job: str
    wait: float
    before: Callable[[], None] | None = None
    order: tuple[str, ...] = ()

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the task: `mapInArrow` calls this."""
        for _ in batches:
            pass
        if self.before is not None:
            self.before()
        errors = ["", *tear_down(self.job, self.order)]
        time.sleep(self.wait)
        workers = [worker_name()] * len(errors)
        yield pa.RecordBatch.from_arrays([pa.array(workers), pa.array(errors)], ["worker", "error"])


class TeardownReported(NamedTuple):
    """Result of a teardown.

    Attributes:
        left: the workers that did not answer.
        errors: the errors of the others, as texts.
    """

    left: set[str]
    errors: list[str]


def tear_down_workers(
    spark: SparkSession,
    job: str,
    workers: set[str],
    slots: int,
    before: Callable[[], None] | None = None,
    order: Sequence[str] = (),
    seconds: float = 60.0,
    given_up: Callable[[], bool] = lambda: False,
    *,
    name: str = "",
) -> TeardownReported:
    """Tear down a finished job.

    Args:
        spark: the session in which the job ran.
        job: id of the job.
        workers: the workers known to hold DoFns with a teardown, as "host:pid". Empty: unknown; one round over as many
            workers as can be expected is made.
        slots: how many tasks Spark runs concurrently.
        before: called in each worker before anything is torn down there.
        order: ids of the job's stages, in the order of their teardown in each worker.
        seconds: the time limit. Workers whose DoFns have not answered by then are ended.
        given_up: returns whether the caller stops waiting. The Spark job may wait for an executor forever.
        name: the job's name in Spark's UI; "": its id.
    """
    began = time.monotonic()
    deadline, until = began + _SECONDS, began + seconds
    left, errors = set(workers), list[str]()
    for attempt in range(_TRIES):
        # SUBTLE: Spark assigns idle workers first in, first out, so short tasks reach all of them. Later attempts
        # occupy each worker for longer, in case Spark assigns them in another order.
        tasks = max(slots, len(workers)) * (2 + attempt)
        frame = spark.range(0, tasks, 1, tasks).mapInArrow(
            Guarded(TearDownTask(job, _WAIT_SECONDS * attempt, before, tuple(order))).__call__,
            _SCHEMA,
        )
        try:
            rows = collected_unless(
                spark,
                frame,
                f"{job}-teardown",
                f"{name or job}: teardown",
                lambda: given_up() or time.monotonic() >= until,
            )
            left -= {str(row[0]) for row in rows}
            errors += [f"{row[1]} ({row[0]})" for row in rows if row[1]]
        except TimeoutError:
            took = time.monotonic() - began
            errors.append(f"timed out after {round(took, 1):g} s; its workers are ended")
            return TeardownReported(left, errors)
        except Exception as e:
            _LOG.debug("teardown of %s could not run: %s", job, e)
            break
        if not left or time.monotonic() > deadline:
            break
    if left:
        _LOG.info("%s: %d worker(s) ended before teardown", job, len(left))
    return TeardownReported(left, errors)
