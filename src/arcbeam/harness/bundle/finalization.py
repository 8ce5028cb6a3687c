"""Bundle finalization: callbacks outlive their bundle until the task's output is safe.

Owns the callbacks that a DoFn has registered. The SDK keeps them in the DoFn's parameter object, which belongs to a
compiled operation. Resetting the operation for the next bundle deletes them, so they are copied at that moment.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from apache_beam import DoFn
from typing_extensions import override

from arcbeam.engine.task.taskstage import Finalizations

_LOG = logging.getLogger("arcbeam.finalization")
_Param: Any = DoFn.BundleFinalizerParam
_forget: Callable[[Any], None] = _Param.reset
_keeping = threading.local()


def _reset(param: Any) -> None:
    """Replace the parameter's `reset`: copy its callbacks, then call the original."""
    kept: list[Callable[[], object]] | None = getattr(_keeping, "callbacks", None)
    if kept is not None:
        kept.extend(param._callbacks)
    _forget(param)


_Param.reset = _reset


class Callbacks(Finalizations):
    """The finalization callbacks of a task's bundles."""

    def __init__(self) -> None:
        self._kept: list[Callable[[], object]] = []

    def __len__(self) -> int:
        """Return how many callbacks there are."""
        return len(self._kept)

    def add(self, callback: Callable[[], object]) -> None:
        """Keep a callback of a bundle that has ended."""
        self._kept.append(callback)

    def keep_from(self, reset: Callable[[], None]) -> None:
        """Reset a processor's operations, and keep the callbacks that this would delete."""
        _keeping.callbacks = self._kept
        try:
            reset()
        finally:
            _keeping.callbacks = None

    def take(self) -> Callbacks:
        """Move all callbacks to a new object, for the code that knows when to run them."""
        taken = Callbacks()
        taken._kept, self._kept = self._kept, []
        return taken

    def drop(self) -> None:
        """Discard all callbacks: their bundles do not count."""
        self._kept.clear()

    @override
    def run(self) -> None:
        """Run each callback once. A failure is only logged: Beam's contract is best effort."""
        kept, self._kept = self._kept, []
        for callback in kept:
            try:
                callback()
            except Exception:
                _LOG.warning("a bundle finalization callback failed", exc_info=True)
