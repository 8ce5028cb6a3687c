"""Bundle finalization: callbacks outlive their bundle until the task's output is safe.

Owns keeping the callbacks that a DoFn registered. The SDK keeps them in the DoFn's parameter object, which belongs to a
compiled operation and forgets them when the operation is made ready for the next bundle; that is where they are taken.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from apache_beam import DoFn

_LOG = logging.getLogger("arcbeam.finalization")
_Param: Any = DoFn.BundleFinalizerParam
_forget: Callable[[Any], None] = _Param.reset
_keeping = threading.local()


def _reset(param: Any) -> None:
    """In place of the parameter's own `reset`, which still does its work."""
    kept: list[Callable[[], None]] | None = getattr(_keeping, "callbacks", None)
    if kept is not None:
        kept.extend(param._callbacks)
    _forget(param)


_Param.reset = _reset


class Callbacks:
    """The finalization callbacks of a task's bundles."""

    def __init__(self) -> None:
        self._kept: list[Callable[[], None]] = []

    def __len__(self) -> int:
        """How many there are."""
        return len(self._kept)

    def keep_from(self, reset: Callable[[], None]) -> None:
        """Resets a processor's operations, keeping the callbacks that they would forget."""
        _keeping.callbacks = self._kept
        try:
            reset()
        finally:
            _keeping.callbacks = None

    def take(self) -> Callbacks:
        """All of them, for whoever knows when they are due; here are none any more."""
        taken = Callbacks()
        taken._kept, self._kept = self._kept, []
        return taken

    def drop(self) -> None:
        """Forgets all: their bundles did not count."""
        self._kept.clear()

    def run(self) -> None:
        """Runs each callback once. One that fails is logged: by Beam's contract it is a best effort."""
        kept, self._kept = self._kept, []
        for callback in kept:
            try:
                callback()
            except Exception:
                _LOG.warning("a bundle finalization callback failed", exc_info=True)
