"""The user code of a stage in a shard, during a micro-batch, if an SDK worker runs it.

Owns where bundles end. A call with state or timers is a bundle of its own: its effects must be known when it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from typing_extensions import override

from arcbeam.engine.grouping.groupings import Elements
from arcbeam.engine.protocol.stagekinds import Stateful
from arcbeam.engine.state.timers import Fired
from arcbeam.engine.task.bundles import CallResult
from arcbeam.harness.streaming.runner import StreamingRunner


class RemoteRunner(StreamingRunner):
    """See `arcbeam.engine.task.bundles.Runner`."""

    @override
    def process(self, key: bytes, elements: Elements) -> CallResult:
        result = super().process(key, elements)
        return self._end_call() if isinstance(self._stage.kind, Stateful) else result

    @override
    def fire(self, due: Iterator[Fired], led_to: Callable[[CallResult], None]) -> None:
        stage = self._stage
        for fired in due:
            user_key = self._enter(fired.key)
            self._bundles.fire(stage.families[fired.family].fire, fired, user_key, self._their_windows(fired.window))
            led_to(self._end_call())

    def _end_call(self) -> CallResult:
        """End the bundle; return the timers that it has set. Its changes of state are in the view already."""
        self._bundles.close()
        return self._leave()
