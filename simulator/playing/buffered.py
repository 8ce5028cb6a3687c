"""User code whose state is written when a call returns, as in an SDK, instead of at once.

Owns the buffer, and when it is emptied. Must not know what is written.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

from typing_extensions import override

from arcbeam.engine.grouping.effects import EmitPane
from arcbeam.engine.grouping.groupings import KeyElements, WindowedElement
from arcbeam.engine.state.residuals import Remainder, Restriction
from arcbeam.engine.state.timers import Fired
from arcbeam.engine.task.bundles import Budget, BundleResult, CallResult, RestrictionResult
from arcbeam.engine.task.bundles import Runner as EngineRunner
from arcbeam.model.interfaces import StateView
from arcbeam.model.windows import Window
from arcbeam.store.shards.overlay import Overlay


def commits_at_the_end_of_calls(chance: str) -> bool:
    """Return whether user code buffers in an attempt: in half of them, so that each kind reads the other's writes."""
    return random.Random(f"{chance}/buffered").random() < 0.5


class Buffered(StateView):
    """A `StateView` that buffers its writes until `commit`.

    Args:
        view: the view below; it does not change while the buffer has writes.
    """

    def __init__(self, view: StateView) -> None:
        self._view = view
        self._top = Overlay(_Below(view))

    @property
    @override
    def written(self) -> int:
        return self._top.written

    @property
    @override
    def empty(self) -> bool:
        return self._top.empty

    @override
    def get(self, key: bytes) -> bytes | None:
        return self._top.get(key)

    @override
    def put(self, key: bytes, value: bytes) -> None:
        self._top.put(key, value)

    @override
    def delete(self, key: bytes) -> None:
        self._top.delete(key)

    @override
    def scan(self, start: bytes, end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        return self._top.scan(start, end)

    def commit(self) -> None:
        """Write the buffer to the view below."""
        for key, value in list(self._top.changes()):
            if value is None:
                self._view.delete(key)
            else:
                self._view.put(key, value)
        self._top = Overlay(_Below(self._view))


class _Below:
    """A view as the base of an overlay."""

    def __init__(self, view: StateView) -> None:
        self.get, self.scan = view.get, view.scan

    def close(self) -> None:
        """Nothing is to be given back."""


class Delegating(EngineRunner):
    """A runner that passes all calls on.

    Args:
        runner: the wrapped runner.
    """

    def __init__(self, runner: EngineRunner) -> None:
        self._runner = runner

    @override
    def process(self, key: bytes, elements: KeyElements) -> CallResult:
        return self._runner.process(key, elements)

    @override
    def panes(self, panes: Sequence[EmitPane]) -> CallResult:
        return self._runner.panes(panes)

    @override
    def fire(self, due: Iterator[Fired], led_to: Callable[[CallResult], None]) -> None:
        self._runner.fire(due, led_to)

    @override
    def expire(self, key: bytes, window: Window) -> CallResult:
        return self._runner.expire(key, window)

    @override
    def restriction(self, key: bytes, element: WindowedElement) -> Remainder:
        return self._runner.restriction(key, element)

    @override
    def resume(self, restriction: Restriction, budget: Budget, pieces: int) -> RestrictionResult:
        return self._runner.resume(restriction, budget, pieces)

    @override
    def truncate(self, restriction: Restriction) -> Remainder | None:
        return self._runner.truncate(restriction)

    @override
    def prepare(self) -> CallResult:
        return self._runner.prepare()

    @override
    def finish(self) -> BundleResult:
        return self._runner.finish()


class Committing(Delegating):
    """A runner whose user code writes into a buffer.

    Args:
        runner: the wrapped runner.
        writes: the buffer of its user code.
    """

    def __init__(self, runner: EngineRunner, writes: Buffered) -> None:
        super().__init__(runner)
        self._writes = writes

    def returns(self) -> None:
        """Commit the buffer: a call is about to return."""
        self._writes.commit()

    @override
    def process(self, key: bytes, elements: KeyElements) -> CallResult:
        result = super().process(key, elements)
        self.returns()
        return result

    @override
    def fire(self, due: Iterator[Fired], led_to: Callable[[CallResult], None]) -> None:

        def committed(result: CallResult) -> None:
            self.returns()
            led_to(result)

        super().fire(due, committed)
        self.returns()

    @override
    def expire(self, key: bytes, window: Window) -> CallResult:
        result = super().expire(key, window)
        self.returns()
        return result

    @override
    def prepare(self) -> CallResult:
        result = super().prepare()
        self.returns()
        return result

    @override
    def finish(self) -> BundleResult:
        closed = super().finish()
        self._writes.commit()
        return closed
