"""User code in an SDK worker: results of calls come later, and timers of many keys fire together.

Owns when calls are executed. Must not know what they do.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from typing_extensions import override

from arcbeam.engine.grouping.groupings import KeyElements
from arcbeam.engine.state.timers import EXPIRATION, Fired
from arcbeam.engine.task.bundles import BundleResult, CallResult
from arcbeam.engine.task.bundles import Runner as EngineRunner
from arcbeam.model.windows import Window
from simulator.judging.records import Broken
from simulator.playing.buffered import Delegating


def fires_together(chance: str) -> int:
    """Return how many timers user code fires together in an attempt; in half of them one after the other."""
    return random.Random(f"{chance}/together").choice([1, 1, 1, 2, 5, 1000])


class InBatches(Delegating):
    """A runner whose calls are executed later, in any order of their keys.

    Args:
        runner: the wrapped runner, which executes one call after the other.
        together: the maximum of timers that fire together; at least 2.
        chance: the prefix of random seeds.
        decode: decodes windows.
    """

    def __init__(self, runner: EngineRunner, together: int, chance: str, decode: Callable[[bytes], Window]) -> None:
        super().__init__(runner)
        self.together = together
        self._chance = random.Random(f"{chance}/lots")
        self._decode = decode
        self._unsettled: list[tuple[bytes, KeyElements]] = []

    @override
    def process(self, key: bytes, elements: KeyElements) -> CallResult:
        self._unsettled.append((key, elements))
        return self._settle(self._chance.choice([0, 0, 1, len(self._unsettled)]))

    @override
    def settle(self) -> CallResult:
        return self._settle(len(self._unsettled))

    def _settle(self, count: int) -> CallResult:
        calls, self._unsettled = self._unsettled[:count], self._unsettled[count:]
        return _joined([self._runner.process(key, elements) for key, elements in calls])

    @override
    def fire_together(self, batch: Sequence[Fired]) -> CallResult:
        if self._unsettled:
            raise Broken(f"timers fire before {self._unsettled}")
        if len({fired.key for fired in batch}) < len(batch) or len(batch) > self.together:
            raise Broken(f"{batch} fire together, at most {self.together} of distinct keys may")
        results: list[CallResult] = []
        for fired in self._chance.sample(list(batch), len(batch)):
            if fired.family == EXPIRATION:
                results.append(self._runner.expire(fired.key, self._decode(fired.window)))
            else:
                self._runner.fire(iter([fired]), results.append)
        return _joined(results)

    @override
    def finish(self) -> BundleResult:
        if self._unsettled:
            raise Broken(f"bundles end before {self._unsettled}")
        return super().finish()


def _joined(results: Sequence[CallResult]) -> CallResult:
    return CallResult(sum(each.written for each in results), [timer for each in results for timer in each.timers])
