"""Bundle finalization in steps: callbacks wait in their worker until their attempt is known to be committed.

Owns them. By Beam's contract it is a best effort: a worker that ends takes its callbacks along.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from arcbeam.harness.bundle.finalization import Callbacks


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The attempts of a step that were committed: no others of it, nor of those before, ever will be."""

    step: int
    tokens: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Confirm:
    """To be called in each worker when no other step follows.

    Attributes:
        job: whose.
        confirmed: the attempts that nobody there has heard of yet.
    """

    job: str
    confirmed: tuple[Confirmed, ...]

    def __call__(self) -> None:
        """Calls what waits for them."""
        for each in self.confirmed:
            callbacks.confirm(self.job, each)


class WaitingCallbacks:
    """The callbacks of this process, by job and attempt."""

    def __init__(self) -> None:
        self._waiting: dict[str, dict[bytes, tuple[int, Sequence[Callbacks]]]] = {}

    def keep(self, job: str, step: int, token: bytes, callbacks: Sequence[Callbacks]) -> None:
        """An attempt has ended; its callbacks wait. What other jobs left is forgotten."""
        self._waiting = {job: self._waiting.get(job, {})}
        if callbacks:
            self._waiting[job][token] = step, callbacks

    def confirm(self, job: str, confirmed: Confirmed) -> None:
        """Calls those of committed attempts, and forgets those of others."""
        waiting = self._waiting.get(job, {})
        for token, (step, callbacks) in list(waiting.items()):
            if step <= confirmed.step:
                del waiting[token]
                if token in confirmed.tokens:
                    for each in callbacks:
                        each.run()


callbacks: Final = WaitingCallbacks()
"""Of this process."""
