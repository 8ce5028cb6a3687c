"""Bundle finalization in a streaming job: a worker keeps callbacks until the commit of their attempt is confirmed.

Owns the callbacks. In Beam, finalization is a best effort: the callbacks of a worker that ends are lost.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from arcbeam.engine.task.taskstage import Finalizations
from arcbeam.store.blobs.private import own_folder
from arcbeam.store.shards.cache import HostCache

CONFIRMED_KEPT: Final = 32
"""The number of micro-batches that each confirmation repeats: a worker need not have a task in each micro-batch."""
_JOBS_MAX = 8


def copies_folder() -> Path:
    """Return the folder of the copies of state on this host."""
    return own_folder("copies")


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The committed attempts of a micro-batch: no other attempt of it will ever be committed."""

    micro_batch: int
    tokens: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class LastWords:
    """The last confirmation, to be called in each worker when no other micro-batch follows.

    Attributes:
        job: the job's id.
        confirmed: the attempts that were committed last.
        name: the job's name in its store.
        forgotten: whether the copies of its state are deleted. They stay if the job may be resumed.
    """

    job: str
    confirmed: tuple[Confirmed, ...]
    name: str = ""
    forgotten: bool = False

    def __call__(self) -> None:
        """Run the callbacks of the confirmed attempts, and forget the job."""
        for each in self.confirmed:
            callbacks.confirm(self.job, each)
        callbacks.forget(self.job)
        if self.name:
            cache = HostCache(copies_folder())
            (cache.forget if self.forgotten else cache.release)(self.name)


class WaitingCallbacks:
    """The callbacks of this process, by job and micro-batch.

    Old ones are dropped: no confirmation of their attempts will come.
    """

    def __init__(self) -> None:
        self._jobs: OrderedDict[str, OrderedDict[int, dict[bytes, Sequence[Finalizations]]]] = OrderedDict()

    def keep(self, job: str, micro_batch: int, token: bytes, callbacks: Sequence[Finalizations]) -> None:
        """Keep the callbacks of an attempt that has ended."""
        if not callbacks:
            return
        micro_batches = self._jobs.setdefault(job, OrderedDict())
        self._jobs.move_to_end(job)
        micro_batches.setdefault(micro_batch, {})[token] = callbacks
        while len(micro_batches) > CONFIRMED_KEPT:
            micro_batches.popitem(last=False)
        while len(self._jobs) > _JOBS_MAX:
            self._jobs.popitem(last=False)

    def forget(self, job: str) -> None:
        """Drop the callbacks of a job."""
        self._jobs.pop(job, None)

    def confirm(self, job: str, confirmed: Confirmed) -> None:
        """Run the callbacks of a micro-batch's committed attempts, and drop the others. Repeating this does nothing."""
        for token, callbacks in self._jobs.get(job, OrderedDict()).pop(confirmed.micro_batch, {}).items():
            if token in confirmed.tokens:
                for each in callbacks:
                    each.run()


callbacks: Final = WaitingCallbacks()
"""The callbacks of this process."""
