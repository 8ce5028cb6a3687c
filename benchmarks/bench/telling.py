"""What a streaming job spends on its status and its metrics, in driver and workers.

Owns which functions those are, and how their processor time gets from workers to the driver: each worker writes a small
file. What the engine needs itself (holds, watermarks) does not count.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_here = threading.local()


class Spent:
    """Seconds of processor time in this process."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def timed(self, function: Callable[..., Any], after: Callable[[], None] = lambda: None) -> Callable[..., Any]:
        """Return a function whose time is counted; only once if another of these functions calls it."""

        @functools.wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            if getattr(_here, "within", False):
                return function(*args, **kwargs)
            _here.within, started = True, time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                _here.within, self.seconds = False, self.seconds + time.thread_time() - started
                after()

        return counted


def watch_driver() -> Spent:
    """Start to count what this process spends on it."""
    from arcbeam.harness.streaming.counters import Counters
    from arcbeam.spark.streaming.streamingjob import StreamRun
    from arcbeam.streaming.driver import proposals

    spent, drafted = Spent(), proposals.snapshot_after
    for owner, name in ((StreamRun, "_figures"), (Counters, "ran"), (Counters, "committed")):
        setattr(owner, name, spent.timed(getattr(owner, name)))

    def snapshot(*args: Any) -> Any:
        found = drafted(*args)
        found.encoded()
        return found

    proposals.snapshot_after = spent.timed(snapshot)
    return spent


_watched: list[Spent] = []


def watch_worker(folder: str) -> None:
    """Do the same in a worker, which writes the result; user code of each stage must call this."""
    from arcbeam.harness.bundle.metrics import MetricsTable

    if _watched:
        return
    spent = Spent()
    _watched.append(spent)
    path, partial = Path(folder, f"{os.getpid()}.spent"), Path(folder, f"{os.getpid()}.partial")

    def note() -> None:
        partial.write_text(str(spent.seconds), encoding="ascii")
        partial.rename(path)

    MetricsTable.add = spent.timed(MetricsTable.add)  # type: ignore[method-assign]
    MetricsTable.serialized = spent.timed(MetricsTable.serialized, note)  # type: ignore[method-assign]


def of_workers(folder: str) -> float:
    """Return what all workers have spent so far."""
    return sum(float(file.read_text(encoding="ascii")) for file in Path(folder).glob("*.spent"))
