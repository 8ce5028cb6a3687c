"""Running a data frame as a Spark job, on the driver: rows, or what the failure means.

Owns ending it at the first error of a user's. Must not know what is in the rows.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from arcbeam.model import texts
from arcbeam.spark.session import driver, remote
from arcbeam.spark.session.sessions import interrupt, is_own, tagged
from arcbeam.spark.tasks.failure import as_job_failure
from arcbeam.store.jobtemp.location import JobLocation

_LOOKS_SECONDS = 0.1
"""How often the driver looks for a user's error that a task has recorded: in a folder, which costs next to nothing.

And for what it waits for beside Spark."""

_REMOTE_LOOKS_SECONDS = 5.0
"""The same in an object store, where each look is a request."""

_LONGEST = 300
"""Characters of what a Spark job is said to be."""


def described(pipeline: str, stages: Iterable[str], micro_batch: int | None = None) -> str:
    """What a Spark job is, for people in Spark's UI: pipeline, micro-batch if it is one, stages."""
    what = pipeline if micro_batch is None else f"{pipeline}: micro-batch {micro_batch}"
    return texts.fit(": ".join(filter(None, (what, "; ".join(stages)))), _LONGEST)


def collected(
    spark: SparkSession,
    frame: DataFrame,
    job: str,
    location: JobLocation,
    running: Iterable[str],
    *,
    about: str = "",
    stage: str = "",
    given_up: threading.Event | None = None,
) -> list[Any]:
    """The rows of a data frame.

    Args:
        spark: where.
        frame: to be computed.
        job: id of the job, by which its Spark jobs are interrupted.
        location: of the job, where a user's error is recorded.
        running: names of the stages that run in it.
        about: what it is, for people in Spark's UI (default: the job).
        stage: what its tasks record errors under; "": whatever it is.
        given_up: is set when nobody wants the rows any more.

    Raises:
        ArcbeamError: it failed; see `failure.as_job_failure`.
    """
    try:
        with tagged(spark, job, about), _ending_at_first_error(spark, job, location, stage, given_up):
            return frame.collect()
    except Exception as e:
        # They know whether Spark's own text adds anything.
        gone = driver.lost(spark, e, is_own(spark)) or remote.lost(spark, e)
        raise gone or as_job_failure(e, location, running, stage)  # noqa: B904


def collected_unless(
    spark: SparkSession, frame: DataFrame, tag: str, about: str, is_over: Callable[[], bool]
) -> list[Any]:
    """The rows of a data frame whose tasks may hang.

    Args:
        spark: where.
        frame: to be computed.
        tag: of its Spark job alone.
        about: what it is, for people in Spark's UI.
        is_over: whether nobody waits for it any more; asked again and again.

    Raises:
        TimeoutError: that is so. The Spark job is being cancelled, which nobody waits for: that may take as long as a
            Python worker takes to be killed.
    """
    told: Future[list[Any]] = Future()

    def collect() -> None:
        try:
            with tagged(spark, tag, about):
                told.set_result(frame.collect())
        except BaseException as e:
            told.set_exception(e)

    def cancel() -> None:
        while not told.done():
            with contextlib.suppress(Exception):
                interrupt(spark, tag)
            time.sleep(_LOOKS_SECONDS)

    # SUBTLE: daemons. A thread of an executor would keep the process from its end.
    threading.Thread(target=collect, name=tag, daemon=True).start()
    while not is_over():
        if told in wait([told], _LOOKS_SECONDS).done:
            return told.result()
    threading.Thread(target=cancel, name=f"{tag}-cancelled", daemon=True).start()
    raise TimeoutError


@contextlib.contextmanager
def _ending_at_first_error(
    spark: SparkSession, job: str, location: JobLocation, stage: str, given_up: threading.Event | None
) -> Iterator[None]:
    """Cancels the Spark job in the block once a task has recorded a user's error, or it is given up.

    Spark itself tries a failed task again, three times as a rule, each time in a new worker.
    """
    ended = threading.Event()
    seconds = _LOOKS_SECONDS if location.folder is not None else _REMOTE_LOOKS_SECONDS

    def look() -> None:
        while not ended.wait(seconds):
            with contextlib.suppress(Exception):
                if (given_up is not None and given_up.is_set()) or location.error_names(stage):
                    # Again and again, as long as it has not ended: what is cancelled may just be starting.
                    interrupt(spark, job)

    watch = threading.Thread(target=look, name=f"errors-{job}", daemon=True)
    watch.start()
    try:
        yield
    finally:
        ended.set()
        watch.join()
