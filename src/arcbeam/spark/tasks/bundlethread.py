"""The thread that runs a task's bundles, while another thread feeds Spark.

Owns how a task's work ends, with success or failure. Must not know what the work is.
"""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable
from typing import Any

from typing_extensions import override

from arcbeam.model.interfaces import OpenStage
from arcbeam.spark.tasks.crashlog import recorder, step_of
from arcbeam.spark.tasks.rowqueue import RowQueue

_LOG = logging.getLogger("arcbeam.task")
_GC_THRESHOLDS = 20_000, 20, 20


class BundleThread(threading.Thread):
    """Runs a task's work. After `join`, `error` is the exception that it raised, or None.

    Args:
        name: the thread's name.
        work: the work; it puts its rows into the queue.
        rows: the queue.
        stage: returns the stage whose user code runs; None if there is none.
        quick: whether the garbage collector may run less often.

    Attributes:
        step: the transform that ran when the work failed; "" if unknown.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], None],
        rows: RowQueue[Any],
        stage: Callable[[], OpenStage | None],
        *,
        quick: bool,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._work, self._rows, self._stage, self._quick = work, rows, stage, quick
        self.error: BaseException | None = None
        self.step = ""

    @override
    def run(self) -> None:
        thresholds = gc.get_threshold()
        # Buffers hold many small lists and tuples without cycles; the collector would spend most of its time on them.
        if self._quick:
            gc.set_threshold(*_GC_THRESHOLDS)
        recorder.running(step_of(self._stage))
        try:
            self._work()
            self._rows.finish()
        except BaseException as e:
            self.error = e
            stage = self._stage()
            if stage is not None:
                self.step = _running_step(stage)
                try:
                    stage.abandon()
                except Exception:
                    _LOG.debug("could not abandon the failed bundle", exc_info=True)
            self._rows.fail()
        finally:
            recorder.end()
            gc.set_threshold(*thresholds)


def _running_step(stage: OpenStage) -> str:
    """Return the transform that was running when the work failed; "" if unknown."""
    try:
        return stage.running_step()
    except Exception:
        return ""
