"""The thread on which a task's bundles run, beside the one that feeds Spark.

Owns how a task's work ends there, well or not. Must not know what the work is.
"""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable
from typing import Any

from arcbeam.model.interfaces import OpenStage
from arcbeam.spark.tasks.blackbox import recorder, step_of
from arcbeam.spark.tasks.rowqueue import RowQueue

_LOG = logging.getLogger("arcbeam.task")
_GC_THRESHOLDS = 20_000, 20, 20


class BundleThread(threading.Thread):
    """Does a task's work. After `join`: `error` is what it has raised, None if it went well.

    Args:
        name: of the thread.
        work: puts its rows into the queue.
        rows: that queue.
        stage: gives the stage whose user code runs; None if there is none.
        quick: whether the collector may look less often.

    Attributes:
        step: that ran when the work failed, as far as is known.
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

    def run(self) -> None:
        """See `threading.Thread`."""
        thresholds = gc.get_threshold()
        # Buffers of many small lists and tuples, none of them in a cycle, are what the collector would look at most.
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
                    _LOG.debug("the failed bundle could not be ended", exc_info=True)
            self._rows.fail()
        finally:
            recorder.end()
            gc.set_threshold(*thresholds)


def _running_step(stage: OpenStage) -> str:
    """The step that was running when the bundle's thread failed, as far as is known."""
    try:
        return stage.running_step()
    except Exception:
        return ""
