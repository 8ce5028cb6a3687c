"""User code that writes its state when a call returns, as an SDK does, instead of at once.

Owns the buffer, and when it is emptied. Must not know what is written.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

from arcbeam.engine.grouping.effects import EmitPane
from arcbeam.engine.grouping.groupings import Elements, WindowedElement
from arcbeam.engine.state.residuals import Remainder, Restriction
from arcbeam.engine.state.timers import Fired
from arcbeam.engine.task.bundles import Budget, BundleResult, CallResult, RestrictionResult
from arcbeam.engine.task.bundles import Runner as EngineRunner
from arcbeam.model.interfaces import StateView
from arcbeam.model.windows import Window
from arcbeam.store.shards.overlay import Overlay


def commits_at_the_end_of_calls(chance: str) -> bool:
    """Whether user code buffers in an attempt: in half of them, so that each kind reads what the other has written."""
    return random.Random(f"{chance}/buffered").random() < 0.5


class Buffered:
    """A `StateView` whose writes come to the one below when it is told so.

    Args:
        view: the one below; it does not change while something is in the buffer.
    """

    def __init__(self, view: StateView) -> None:
        self._view = view
        self._top = Overlay(_Below(view))

    @property
    def written(self) -> int:
        """See `StateView`."""
        return self._top.written

    def get(self, key: bytes) -> bytes | None:
        """See `StateView`."""
        return self._top.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        """See `StateView`."""
        self._top.put(key, value)

    def delete(self, key: bytes) -> None:
        """See `StateView`."""
        self._top.delete(key)

    def scan(self, start: bytes, end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """See `StateView`."""
        return self._top.scan(start, end)

    def commit(self) -> None:
        """Writes what is in the buffer."""
        for key, value in list(self._top.changes()):
            if value is None:
                self._view.delete(key)
            else:
                self._view.put(key, value)
        self._top = Overlay(_Below(self._view))


class _Below:
    """A view, as what an overlay is made on."""

    def __init__(self, view: StateView) -> None:
        self.get, self.scan = view.get, view.scan

    def close(self) -> None:
        """Nothing is to be given back."""


class Committing:
    """A runner whose user code writes into a buffer.

    Args:
        runner: that it is.
        writes: its buffer.
    """

    def __init__(self, runner: EngineRunner, writes: Buffered) -> None:
        self._runner, self._writes = runner, writes

    def returns(self) -> None:
        """A call is about to return."""
        self._writes.commit()

    def process(self, key: bytes, elements: Elements) -> CallResult:
        """See `bundles.Runner`."""
        result = self._runner.process(key, elements)
        self.returns()
        return result

    def panes(self, panes: Sequence[EmitPane]) -> CallResult:
        """See `bundles.Runner`."""
        return self._runner.panes(panes)

    def fire(self, due: Iterator[Fired], led_to: Callable[[CallResult], None]) -> None:
        """See `bundles.Runner`."""

        def told(result: CallResult) -> None:
            self.returns()
            led_to(result)

        self._runner.fire(due, told)
        self.returns()

    def expire(self, key: bytes, window: Window) -> CallResult:
        """See `bundles.Runner`."""
        result = self._runner.expire(key, window)
        self.returns()
        return result

    def restriction(self, key: bytes, element: WindowedElement) -> Remainder:
        """See `bundles.Runner`."""
        return self._runner.restriction(key, element)

    def resume(self, restriction: Restriction, budget: Budget, pieces: int) -> RestrictionResult:
        """See `bundles.Runner`."""
        return self._runner.resume(restriction, budget, pieces)

    def truncate(self, restriction: Restriction) -> Remainder | None:
        """See `bundles.Runner`."""
        return self._runner.truncate(restriction)

    def prepare(self) -> CallResult:
        """See `bundles.Runner`."""
        result = self._runner.prepare()
        self.returns()
        return result

    def finish(self) -> BundleResult:
        """See `bundles.Runner`."""
        closed = self._runner.finish()
        self._writes.commit()
        return closed
