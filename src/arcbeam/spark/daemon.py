"""Spark's Python daemon, with the SDK imported before it forks workers.

Every Python worker is a fork of Spark's daemon. Importing the SDK takes seconds; done here, it is done once per
executor. A session uses it if its `spark.python.daemon.module` says so, and works without it. Nothing imports this
module: it is a program.
"""

from __future__ import annotations

import importlib
import logging
import os
from typing import Any, Final

from arcbeam.spark.session import archives, exits
from arcbeam.store.blobs.claims import remove_all

if __name__ == "__main__":
    archives.put_installed_first()

from pyspark import daemon  # which PySpark, is decided above

MODULE: Final = "arcbeam.spark.daemon"
"""This module's name, also where it is `__main__`."""

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
        remove_all()


def prepare() -> None:
    """Imports what workers need. What modules hold then is taken from the garbage collector's sight."""
    # The SDK warns about optional packages at import; once, in the driver, is enough.
    logging.disable(logging.WARNING)
    # For their effect on the forks.
    import pyspark.worker  # noqa: F401

    import arcbeam.harness.batch.batchstage
    import arcbeam.spark.tasks.ending.teardown
    import arcbeam.spark.tasks.task  # noqa: F401
    from arcbeam.spark.tasks.openstages import freeze_imported_objects

    logging.disable(logging.NOTSET)
    archives.forget()
    freeze_imported_objects()


def main() -> None:
    """Serves Spark until it goes away."""
    prepare()
    daemon.worker = run_worker
    pyspark_daemon: Any = daemon
    pyspark_daemon.signal = exits.Signals()
    os.fork = exits.forking(os.fork)
    daemon.manager()


if __name__ == "__main__":
    # SUBTLE: not this module's own `main`, but its importable twin's: the workers' `__main__` is for classes of users.
    importlib.import_module(MODULE).main()
