"""Plausible mistakes in stages whose results come later and whose timers fire together; see `mutations`.

Owns the patches. Must not know how a mistake is found.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from unittest.mock import patch

from arcbeam.engine.state.keyqueue import Element
from arcbeam.engine.state.timers import Fired, Timers
from arcbeam.engine.task.statefulstage import StatefulLogic
from arcbeam.model.timestamps import Timestamp
from simulator.mistakes_of_the_store import Mutation


def _unsettled() -> AbstractContextManager[object]:
    return patch.object(StatefulLogic, "_settle", lambda self: None)


def _end_of_batch_lost() -> AbstractContextManager[object]:
    return patch.object(Timers, "put_back", lambda self, fired: None)


def _expired_kept() -> AbstractContextManager[object]:
    fire_batch = StatefulLogic._fire_batch

    def without_dropping(self: StatefulLogic, first: Fired, watermark: Timestamp) -> Element | Fired | None:
        with patch.object(StatefulLogic, "_drop", lambda self, key, window: None):
            return fire_batch(self, first, watermark)

    return patch.object(StatefulLogic, "_fire_batch", without_dropping)


OF_BATCHES: Mapping[str, Mutation] = {
    "a watermark that fires timers before results came": _unsettled,
    "a timer that ends a batch lost": _end_of_batch_lost,
    "the state of windows that expire in a batch kept": _expired_kept,
}
"""The mistakes by name."""
