"""Spark's Python daemon, with the SDK imported before it forks workers.

Every Python worker is a fork of Spark's daemon. Importing the SDK takes seconds; done here, it is done once per
executor. Used through `spark.python.daemon.module` in sessions of our own; any other session works without it.
"""

from __future__ import annotations

import importlib
import logging
import os
from typing import Any

from arcbeam.spark.session import archives, exits

if __name__ == "__main__":
    archives.put_installed_first()

from pyspark import daemon  # which PySpark, is decided above

_NEEDED = (
    "arcbeam.spark.tasks.task",
    "arcbeam.harness.batch.batchstage",
    "arcbeam.spark.tasks.ending.teardown",
    "pyspark.worker",
)
"""Imported for their effect on the forks. By name, because an import that nothing uses is soon tidied away."""

_run_worker = daemon.worker


def run_worker(sock: Any, authenticated: bool) -> int:
    """Runs a forked worker until Spark has no more for it; see `pyspark.daemon.worker`.

    Returns:
        The exit code. A worker whose socket Spark has closed (its task was cancelled, or failed elsewhere) ends without
        a word: Spark's own would print the traceback of a broken pipe.
    """
    try:
        return _run_worker(sock, authenticated)
    except (BrokenPipeError, ConnectionResetError, EOFError):
        return 1
    finally:
        importlib.import_module("arcbeam.store.blobs.claims").remove_all()


def main() -> None:
    """Imports what workers need, and serves Spark until it goes away."""
    # The SDK warns about optional packages at import; once, in the driver, is enough.
    logging.disable(logging.WARNING)
    for name in _NEEDED:
        importlib.import_module(name)
    logging.disable(logging.NOTSET)
    archives.forget()
    importlib.import_module("arcbeam.spark.tasks.task")
    importlib.import_module("arcbeam.spark.tasks.openstages").freeze_imported_objects()
    daemon.worker = run_worker
    pyspark_daemon: Any = daemon
    pyspark_daemon.signal = exits.Signals()
    os.fork = exits.forking(os.fork)
    daemon.manager()


if __name__ == "__main__":
    # SUBTLE: not this module's own `main`, but its importable twin's: the workers' `__main__` is for classes of users.
    importlib.import_module("arcbeam.spark.session.daemon").main()
