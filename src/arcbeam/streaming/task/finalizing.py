"""Bundle finalization in a streaming job: callbacks wait in their worker until their attempt is known to be committed.

Owns them. By Beam's contract it is a best effort: a worker that ends takes its callbacks along.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from arcbeam.store.blobs.private import own_folder
from arcbeam.store.shards.cache import HostCache
from arcbeam.streaming.interfaces import Finalizations

TOLD: Final = 32
"""So many micro-batches are told of, again and again: a worker need not have a task in each of them."""
_MOST_JOBS = 8


def copies_folder() -> Path:
    """Where the copies of state are on this host."""
    return own_folder("copies")


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The attempts of a micro-batch that were committed: no others of it ever will be."""

    micro_batch: int
    tokens: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class LastWords:
    """To be called in each worker when no other micro-batch follows.

    Attributes:
        job: whose.
        confirmed: the attempts that were committed last.
        name: the job's name in its store.
        forgotten: whether the copies of its state go with it; they stay for who resumes it.
    """

    job: str
    confirmed: tuple[Confirmed, ...]
    name: str = ""
    forgotten: bool = False

    def __call__(self) -> None:
        """Calls what waits for them, and forgets the job."""
        for each in self.confirmed:
            callbacks.confirm(self.job, each)
        callbacks.forget(self.job)
        if self.name:
            cache = HostCache(copies_folder())
            (cache.forget if self.forgotten else cache.leave)(self.name)


class WaitingCallbacks:
    """The callbacks of this process, by job and micro-batch. Old ones are forgotten: nobody will hear of their
    attempts.
    """

    def __init__(self) -> None:
        self._jobs: OrderedDict[str, OrderedDict[int, dict[bytes, Sequence[Finalizations]]]] = OrderedDict()

    def keep(self, job: str, micro_batch: int, token: bytes, callbacks: Sequence[Finalizations]) -> None:
        """An attempt has ended; its callbacks wait."""
        if not callbacks:
            return
        micro_batches = self._jobs.setdefault(job, OrderedDict())
        self._jobs.move_to_end(job)
        micro_batches.setdefault(micro_batch, {})[token] = callbacks
        while len(micro_batches) > TOLD:
            micro_batches.popitem(last=False)
        while len(self._jobs) > _MOST_JOBS:
            self._jobs.popitem(last=False)

    def forget(self, job: str) -> None:
        """Nothing is heard of a job any more."""
        self._jobs.pop(job, None)

    def confirm(self, job: str, confirmed: Confirmed) -> None:
        """Calls those of a micro-batch's committed attempts, and forgets those of its others. Again does nothing."""
        for token, callbacks in self._jobs.get(job, OrderedDict()).pop(confirmed.micro_batch, {}).items():
            if token in confirmed.tokens:
                for each in callbacks:
                    each.run()


callbacks: Final = WaitingCallbacks()
"""Of this process."""
