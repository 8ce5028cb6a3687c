"""Keeps Python's garbage collector off the state of a large job.

Owns when objects are set aside, and how often new ones are read. Must not know what they are.

The driver of a large job replaces many objects in each micro-batch, without cycles, so reference counts free them. The
collector looks for cycles whenever many objects are new, and reads the whole state of the job each time: a third of the
driver's time at 2,000 places. Objects that are set aside are freed as before, except for cycles: these wait.
"""

from __future__ import annotations

import gc
from typing import Final

from arcbeam.sizes import threshold

_LARGE: Final = threshold(500)
"""Stages times shards of a job whose state is set aside; in a smaller one, collections cost little."""
_COLLECT_EVERY: Final = threshold(32)
"""Micro-batches after which cycles among the objects that were set aside are collected."""
_YOUNG: Final = 100_000
"""New objects after which the collector looks for cycles among them: a micro-batch has some hundred thousand."""


class StateAside:
    """The objects of this process that are set aside. Other code in the process loses nothing but time until cycles of
    its objects are freed: at most some micro-batches.
    """

    def __init__(self) -> None:
        self._commits = 0
        self._threshold = gc.get_threshold()

    def committed(self, places: int) -> None:
        """Set all objects aside after a commit.

        Args:
            places: the number of stages and shards that took part.
        """
        if places < _LARGE or not gc.isenabled():
            return
        if not self._commits:
            self._threshold = gc.get_threshold()
            gc.set_threshold(max(_YOUNG, self._threshold[0]), *self._threshold[1:])
        self._commits += 1
        if self._commits % _COLLECT_EVERY == 0:
            gc.unfreeze()
            gc.collect()
        gc.freeze()

    def release(self) -> None:
        """Return all objects to the collector, when the job ends; it is idempotent."""
        if self._commits:
            self._commits = 0
            gc.set_threshold(*self._threshold)
            gc.unfreeze()
