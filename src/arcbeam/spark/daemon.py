"""Spark's Python daemon, with the SDK imported before it forks workers.

Every Python worker is a fork of Spark's daemon. Importing the SDK takes seconds; here it is imported once per executor.
A session uses this module if its `spark.python.daemon.module` names it, and works without it. No module imports this
one: it is a program.
"""

from __future__ import annotations

import gc
import importlib
import logging
import os
import time
from collections.abc import Callable
from typing import Any, Final

from arcbeam.spark.session import archives, exits
from arcbeam.store.blobs.claims import remove_all

if __name__ == "__main__":
    archives.put_installed_first()

from pyspark import daemon  # the code above decides which PySpark

MODULE: Final = "arcbeam.spark.daemon"
"""This module's name, also if it runs as `__main__`."""

_REUSE: Final = "SPARK_REUSE_WORKER"
"""Spark sets it if `spark.python.worker.reuse` is true."""
_SHARE_OF_GARBAGE: Final = 0.03
"""The share of a worker's time for collecting garbage between tasks, at most."""
_run_worker: Callable[[Any, bool], int] = daemon.worker


def run_worker(sock: Any, authenticated: bool) -> int:
    """Run a task in a forked worker; see `pyspark.daemon.worker`. Spark calls it again for the worker's next task.

    Returns:
        The exit code; after any but 0 the worker ends. A worker whose socket Spark has closed (its task was cancelled,
        or failed elsewhere) ends silently. Spark's own function would print the traceback of a broken pipe.
    """
    code = 1
    try:
        code = _run_worker(sock, authenticated)
    except (BrokenPipeError, ConnectionResetError, EOFError):
        pass
    finally:
        # A worker that is used again keeps its folders: what it keeps from task to task is there.
        if code or not os.environ.get(_REUSE):
            remove_all()
    return code


class GarbageCollector:
    """Collects garbage between a worker's tasks, in a small share of its time.

    Spark's daemon collects after each task, and the next task waits for it: with short tasks, that is a third of a
    worker's time. Python itself collects while a task runs.

    Args:
        clock: returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next = clock()

    def collect(self) -> None:
        """Collect, unless the last time was just now."""
        began = self._clock()
        if began >= self._next:
            gc.collect()
            ended = self._clock()
            self._next = ended + (ended - began) / _SHARE_OF_GARBAGE


def prepare() -> None:
    """Import what workers need, and hide the modules' objects from the garbage collector."""
    # The SDK warns about optional packages at import; the driver's warning is enough.
    logging.disable(logging.WARNING)
    # An import makes many objects, and nearly no garbage: collections would be an eighth of its time.
    gc.disable()
    # Imported for their effect on the forks.
    import pyspark.worker  # noqa: F401

    import arcbeam.harness.batch.batchstage
    import arcbeam.spark.tasks.ending.teardown
    import arcbeam.spark.tasks.task  # noqa: F401
    from arcbeam.spark.tasks.openstages import freeze_imported_objects

    logging.disable(logging.NOTSET)
    archives.forget()
    freeze_imported_objects()
    gc.enable()


def main() -> None:
    """Serve Spark until it ends."""
    prepare()
    daemon.worker = run_worker
    pyspark_daemon: Any = daemon
    pyspark_daemon.signal = exits.Signals()
    pyspark_daemon.gc = GarbageCollector()
    os.fork = exits.forking(os.fork)
    daemon.manager()


if __name__ == "__main__":
    # SUBTLE: not this module's `main`, but that of its importable copy: the workers' `__main__` is for users' classes.
    importlib.import_module(MODULE).main()
