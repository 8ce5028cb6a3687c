"""Two drivers of one job: the fenced one ends within seconds, and names the other.

Concurrent drivers share the host's copies of state. For more trials than `make test-all`:

    python -m tests.chaos.test_fencing KIND 20       KIND: one of `KINDS`
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from arcbeam.model.timestamps import Timestamp
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.log import requests
from arcbeam.store.log.chain import known, read_newest
from arcbeam.store.manifest.names import epoch_name
from arcbeam.store.manifest.values import Manifest, ManifestKind
from tests.chaos.hosts import Driver, Host
from tests.waiting import until

SECONDS: Final = 10.0
"""Seconds in which a fenced driver must end."""
_PATIENCE: Final = 300.0
"""Seconds after which a trial is abandoned: a session starts on a busy machine."""


class Fenced(NamedTuple):
    """How a fenced driver ended.

    Attributes:
        seconds: since it could know that it was fenced.
        names_other: whether its error names the driver that took over.
    """

    seconds: float
    names_other: bool


class Duel:
    """A job that two drivers run, each in its own process.

    Args:
        folder: for all files.
        seed: of all chance.
        shared: whether both have the same copies of state. Not if one is stopped, because it may hold the lock of a
            copy.
    """

    def __init__(self, folder: Path, seed: int, *, shared: bool) -> None:
        self._folder, self._chance = folder, random.Random(seed)
        self._state = FolderBlobs(folder / "state")
        (folder / "trial").mkdir()
        (folder / "elsewhere").mkdir()
        elsewhere = {} if shared else {"TMPDIR": str(folder / "elsewhere")}
        self._hosts = [Host(folder / f"host-{n}", "local[2,8]", elsewhere if n else {}) for n in range(2)]

    def close(self) -> None:
        """End both processes."""
        for host in self._hosts:
            host.kill()

    def beside(self) -> Fenced:
        """Start both at nearly the same time."""
        before = self._epoch()
        drivers = [self._start(self._hosts[0])]
        time.sleep(self._chance.choice((0.0, self._chance.uniform(0, 1))))
        drivers.append(self._start(self._hosts[1]))
        until(lambda: self._epoch() >= before + 2, seconds=_PATIENCE)
        began = time.monotonic()
        (loser, *_) = until(lambda: [n for n in range(2) if drivers[n].poll() is not None], seconds=_PATIENCE)
        fenced = self._fenced(time.monotonic() - began, self._hosts[loser])
        self._cancel(drivers[1 - loser])
        return fenced

    def stopped(self) -> Fenced:
        """Stop all processes of one, let another take the job over, and continue the first ones."""
        before = self._epoch()
        first = self._start(self._hosts[0])
        self._wait_for_micro_batches(before)
        time.sleep(self._chance.uniform(0, 1))
        self._hosts[0].signal(signal.SIGSTOP)
        second = self._start(self._hosts[1])
        self._wait_for_micro_batches(before + 1)
        self._hosts[0].signal(signal.SIGCONT)
        began = time.monotonic()
        first.wait(_PATIENCE)
        fenced = self._fenced(time.monotonic() - began, self._hosts[0])
        self._cancel(second)
        return fenced

    def _start(self, host: Host) -> Driver:
        options = [f"--checkpoint_dir={self._folder / 'state'}", "--shards=3"]
        return host.start(self._folder / "trial", str(self._folder / "out"), options)

    def _head(self) -> Manifest | None:
        with contextlib.suppress(FileNotFoundError):
            newest = read_newest(self._state)
            return None if newest is None else known(newest)
        return None

    def _epoch(self) -> int:
        head = self._head()
        return 0 if head is None else head.epoch

    def _record(self) -> dict[str, str]:
        record: dict[str, str] = json.loads(self._state.get(epoch_name(self._epoch())))
        return record

    def _wait_for_micro_batches(self, after: int) -> None:
        """Wait for a micro-batch of a driver of a later epoch."""
        until(
            lambda: (head := self._head()) is not None and head.epoch > after and head.kind is ManifestKind.MICRO_BATCH,
            seconds=_PATIENCE,
        )

    def _fenced(self, seconds: float, host: Host) -> Fenced:
        return Fenced(seconds, self._record()["driver"] in host.tail())

    def _cancel(self, driver: Driver) -> None:
        now = Timestamp(time.time_ns() // 1000)
        requests.ask(self._state, requests.RequestKind.CANCEL, "", now)
        driver.wait(_PATIENCE)


KINDS: Final[dict[str, Callable[[Duel], Fenced]]] = {"beside": Duel.beside, "stopped": Duel.stopped}


def trials(kind: str, count: int, folder: Path) -> Iterator[Fenced]:
    """Run a number of trials on one job."""
    duel = Duel(folder, seed=count, shared=kind != "stopped")
    try:
        for _ in range(count):
            yield KINDS[kind](duel)
    finally:
        duel.close()


@pytest.mark.long
@pytest.mark.contract("STORE-03")
@pytest.mark.parametrize("kind", KINDS)
def test_fenced_driver_ends_and_names_other(kind: str, tmp_path: Path) -> None:
    found = list(trials(kind, 2, tmp_path))
    assert all(each.names_other and each.seconds < SECONDS for each in found), found


def main(kind: str, count: int) -> None:
    """Print each trial, and how many succeeded."""
    with tempfile.TemporaryDirectory(prefix="fencing-", dir=os.environ.get("TMPDIR")) as folder:
        well = 0
        for number, fenced in enumerate(trials(kind, count, Path(folder)), 1):
            well += fenced.names_other and fenced.seconds < SECONDS
            named = "names" if fenced.names_other else "DOES NOT NAME"
            sys.stdout.write(f"{kind} {number}: ended after {fenced.seconds:.1f} s, {named} the other\n")
            sys.stdout.flush()
        sys.stdout.write(f"{well} of {count} fenced drivers ended within {SECONDS:g} s and named the other\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
