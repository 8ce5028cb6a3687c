"""A store with all faults that a store may have, chosen by a seed.

Owns the four outcomes of a write, and stale listings. Must not know what is written.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from typing_extensions import override

from arcbeam.store.blobs.durable import BlobInfo, DurableBlobs
from arcbeam.store.blobs.errors import DeterminateError, IndeterminateError, MissingFileError


@dataclass(frozen=True, slots=True)
class Faults:
    """Probabilities of faults, each from 0 to 1. A write has one of the first five outcomes, or succeeds.

    Attributes:
        refused: the write does not happen, and reports that.
        lost: the write does not happen, and reports a timeout.
        silent: the write happens, and reports a timeout.
        late: the write reports a timeout, and happens later: before another call, or at `settle`.
        repeated: the write happens twice: a create may find its own bytes, and report that the name exists.
        unread: a read gets no answer.
        stale: a listing omits some of the latest names, and contains some deleted ones.
        landing: before a call, a late write happens; after one, another may follow.
    """

    refused: float = 0.0
    lost: float = 0.0
    silent: float = 0.0
    late: float = 0.0
    repeated: float = 0.0
    unread: float = 0.0
    stale: float = 0.0
    landing: float = 0.3


NONE = Faults()
"""A store without faults."""


class UnreliableBlobs(DurableBlobs):
    """`DurableBlobs` whose calls fail with given probabilities. The same seed and calls give the same faults.

    Args:
        inner: the store with the bytes.
        seed: of the random choices.
        faults: their probabilities; may be changed later.
        beside: another client of the same store. They share late writes, because a request outlives the process that
            sent it, and the names that listings omit.

    Attributes:
        faults: as above.
        late: the writes that will still happen.
        calls: the calls and their outcomes, in order, to explain a failure.
    """

    def __init__(
        self,
        inner: DurableBlobs,
        seed: int,
        faults: Faults = NONE,
        *,
        beside: UnreliableBlobs | None = None,
    ) -> None:
        self._inner = inner
        self._random = random.Random(seed)
        self.faults = faults
        self.late: list[Callable[[], object]] = beside.late if beside else []
        self.calls: list[str] = []
        self._interrupts: list[tuple[int, Callable[[], object]]] = []
        self._recent: list[str] = beside._recent if beside else []
        self._deleted: list[BlobInfo] = beside._deleted if beside else []

    def __str__(self) -> str:
        return str(self._inner)

    @override
    def get(self, name: str) -> bytes:
        self._before_read(name)
        return self._inner.get(name)

    @override
    def get_range(self, name: str, start: int, length: int) -> bytes:
        self._before_read(name)
        return self._inner.get_range(name, start, length)

    @override
    def put(self, name: str, data: bytes) -> None:
        self._write("put", name, lambda: self._inner.put(name, data))

    @override
    def put_file(self, name: str, path: Path) -> None:
        data = path.read_bytes()  # a late write must not depend on the file
        self._write("put_file", name, lambda: self._inner.put(name, data))

    @override
    def create(self, name: str, data: bytes) -> bool:
        return bool(self._write("create", name, lambda: self._inner.create(name, data)))

    @override
    def delete(self, name: str) -> None:

        def delete() -> None:
            try:
                size = len(self._inner.get(name))
            except MissingFileError:
                return
            self._inner.delete(name)
            self._deleted.append(BlobInfo(name, size))

        self._write("delete", name, delete)

    @override
    def tidy(self) -> None:
        self._inner.tidy()

    @override
    def list(self, prefix: str, after: str = "") -> Iterator[BlobInfo]:
        self._before_read(prefix)
        found = {info.name: info for info in self._inner.list(prefix, after)}
        if self._random.random() < self.faults.stale:
            self.calls.append(f"list {prefix}: stale")
            for name in self._recent[-self._random.randint(1, 8) :]:
                found.pop(name, None)
            for info in self._deleted:
                if info.name.startswith(f"{prefix}/") and info.name > after and self._random.random() < 0.5:
                    found.setdefault(info.name, info)
        yield from (found[name] for name in sorted(found))

    def reseed(self, seed: int) -> None:
        """Set a new seed."""
        self._random.seed(seed)

    def interrupt(self, after: int, do: Callable[[], object]) -> None:
        """Run `do` before the call that follows `after` more calls: the caller sleeps, others work, or it dies.

        The caller gets the exception of `do`, if any.
        """
        self._interrupts.append((after, do))

    def settle(self) -> None:
        """Carry out all late writes."""
        while self.late:
            self.late.pop(0)()

    def _before_read(self, name: str) -> None:
        self._interrupted()
        self._some_late()
        if self._random.random() < self.faults.unread:
            self.calls.append(f"read {name}: unread")
            raise _timeout(name)

    def _interrupted(self) -> None:
        due = [do for left, do in self._interrupts if not left]
        self._interrupts = [(left - 1, do) for left, do in self._interrupts if left]
        for do in due:
            do()

    def _some_late(self) -> None:
        while self.late and self._random.random() < self.faults.landing:
            self.late.pop(self._random.randrange(len(self.late)))()

    def _write(self, what: str, name: str, write: Callable[[], object]) -> object:
        self._interrupted()
        self._some_late()
        outcome = self._outcome()
        self.calls.append(f"{what} {name}: {outcome}")
        match outcome:
            case "refused":
                raise DeterminateError(f"'{name}' was refused")
            case "lost":
                raise _timeout(name)
            case "silent":
                write()
                raise _timeout(name)
            case "late":
                self.late.append(write)
                raise _timeout(name)
            case "repeated":
                write()
        self._recent.append(name)
        return write()

    def _outcome(self) -> str:
        chance = self._random.random()
        for outcome in ("refused", "lost", "silent", "late", "repeated"):
            chance -= getattr(self.faults, outcome)
            if chance < 0:
                return outcome
        return "done"


def _timeout(name: str) -> IndeterminateError:
    return IndeterminateError(f"no answer about '{name}'")
