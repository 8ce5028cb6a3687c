"""Tearing down what a finished job left in the Python workers.

Owns the short Spark job that reaches them. Best effort, as Beam's contract says: a worker that Spark has ended, or does
not hand out in time, is not waited for; its DoFns are torn down when another job's task arrives, or never.
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
    """Tears down the job's processors in whatever worker it lands on, and says which one that is.

    Attributes:
        job: whose processors.
        before: called before anything is torn down.
        order: ids of stages, in the order in which they are torn down in a worker.
        wait: seconds to keep the worker, so that the other tasks land on other workers.
    """

    job: str
    wait: float
    before: Callable[[], None] | None = None
    order: tuple[str, ...] = ()

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What `mapInArrow` runs."""
        for _ in batches:
            pass
        if self.before is not None:
            self.before()
        errors = ["", *tear_down(self.job, self.order)]
        time.sleep(self.wait)
        workers = [worker_name()] * len(errors)
        yield pa.RecordBatch.from_arrays([pa.array(workers), pa.array(errors)], ["worker", "error"])


class TeardownReported(NamedTuple):
    """How it went.

    Attributes:
        left: the workers that did not answer.
        errors: what went wrong in the others, for people.
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
    """Tears a finished job down.

    Args:
        spark: where the job ran.
        job: its id.
        workers: those known to hold DoFns with a teardown of their own, as "host:pid"; empty: not known, so one round
            over as many workers as can be expected is all that is done.
        slots: how many tasks Spark runs at once.
        before: called in each worker, before anything is torn down there.
        order: ids of the job's stages: in each worker they are torn down so.
        seconds: that it may take. Workers whose DoFns have not answered by then are ended.
        given_up: whether the driver does not wait for it any more. Its Spark job may wait for an executor for ever.
        name: of the job, for people in Spark's UI; "": its id.
    """
    began = time.monotonic()
    deadline, until = began + _SECONDS, began + seconds
    left, errors = set(workers), list[str]()
    for attempt in range(_TRIES):
        # SUBTLE: Spark hands out idle workers first in, first out, so tasks that are short pass through all of them;
        # a later attempt holds each for longer, in case they are handed out otherwise.
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
            errors.append(f"it has taken more than {round(took, 1):g} s, and is given up: its workers are ended")
            return TeardownReported(left, errors)
        except Exception as e:
            _LOG.debug("teardown of %s could not run: %s", job, e)
            break
        if not left or time.monotonic() > deadline:
            break
    if left:
        _LOG.info("%s: %d worker(s) were gone before teardown", job, len(left))
    return TeardownReported(left, errors)
