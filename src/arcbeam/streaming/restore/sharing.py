"""Several processes rescale a level: each moves rows of some old shards, then merges the files of some new ones.

Owns the processes. They read and write local files only, so they need no access to the job's store. Must not know the
rules of rows, nor why the number of shards changes.

SUBTLE: a process is a new interpreter with this module as its program. The driver must not fork, because it may have
threads of gRPC. `multiprocessing` without a fork runs the user's script again.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar, cast

from arcbeam.engine.rescaling.rescaling import LevelRescaling, MovedElsewhere, RescaledStage
from arcbeam.errors import ArcbeamError
from arcbeam.store.blobs.private import make_folder
from arcbeam.store.shards.rewriting import LevelWriter, LocalRows, ShardRows, SortedFile, merge
from arcbeam.store.shards.shardfile import Summary

_T = TypeVar("_T")
_PROCESSES: Final = 8
"""The maximum: each of them needs some 200 MB of memory."""


@dataclass(frozen=True, slots=True)
class Moved:
    """The rows that a process has moved: its files by new shard, and what `LevelRescaling.adopt` takes."""

    parts: Sequence[Sequence[SortedFile]]
    elsewhere: MovedElsewhere


@dataclass(frozen=True, slots=True)
class MoveRows:
    """Moves rows of some old shards.

    Attributes:
        had: the number of old shards.
        shards: the number of new shards.
        stages: the level's stages by number.
        rows: of some old shards.
        scratch: a local folder for the files.
    """

    had: int
    shards: int
    stages: Mapping[int, RescaledStage]
    rows: Mapping[int, LocalRows]
    scratch: Path

    def __call__(self) -> Moved:
        """Do it."""
        with LevelWriter(self.scratch, 0, self.shards) as writer:
            rescaling = LevelRescaling(self.had, self.shards, self.stages, writer.put)
            for shard, rows in self.rows.items():
                rescaling.move(shard, rows)
            return Moved(writer.take_files(), rescaling.moved())


@dataclass(frozen=True, slots=True)
class MergeFiles:
    """Merges the files of some new shards, and removes them.

    Attributes:
        parts: the files by new shard.
        scratch: a local folder for the new files.
    """

    parts: Mapping[int, Sequence[SortedFile]]
    scratch: Path

    def __call__(self) -> list[tuple[int, Path, Summary]]:
        """Do it; return each shard with its new file."""
        make_folder(self.scratch)
        merged = []
        for shard, parts in self.parts.items():
            path = self.scratch / uuid.uuid4().hex
            merged.append((shard, path, merge(parts, path)))
            for part in parts:
                part.path.unlink()
        return merged


class Sharing:
    """Processes that share the work of a level. Use it as a context manager.

    Args:
        processes: how many.
        scratch: a local folder for twice as many bytes as the level has; the caller removes what is left there.
    """

    def __init__(self, processes: int, scratch: Path) -> None:
        self._processes, self._scratch = processes, scratch
        self._threads = ThreadPoolExecutor(processes, "rescale")

    def __enter__(self) -> Sharing:
        """Return this."""
        return self

    def __exit__(self, *error: object) -> None:
        """Wait for the processes."""
        self._threads.shutdown(cancel_futures=True)

    def move(
        self,
        rescaling: LevelRescaling,
        writer: LevelWriter,
        had: int,
        shards: int,
        stages: Mapping[int, RescaledStage],
        old: Mapping[int, ShardRows],
    ) -> None:
        """Take all old shards of a level: the processes move rows, and this one joins the others.

        Args:
            rescaling: the level's, before any `take`.
            writer: the level's.
            had: the number of old shards.
            shards: the number of new shards.
            stages: the level's stages by number.
            old: the rows of the old shards.

        Raises:
            ArcbeamError: see `LevelRescaling.take`; or a process has ended before its time.
            StoreError: a file cannot be read or written.
        """
        groups = balanced(
            {shard: sum(file.size for file in rows.files) for shard, rows in old.items()}, self._processes
        )
        copies = {shard: self._threads.submit(self._copied, shard, old[shard]) for group in groups for shard in group}
        local = {shard: copies[shard].result() for shard in old}
        moves = [
            MoveRows(had, shards, stages, {shard: local[shard] for shard in group}, self._scratch) for group in groups
        ]
        running = [self._threads.submit(apart, move) for move in moves]
        for shard, rows in local.items():
            rescaling.join(shard, rows)
        for process in running:
            moved = process.result()
            writer.adopt(moved.parts)
            rescaling.adopt(moved.elsewhere)
        for rows in local.values():
            rows.remove()

    def _copied(self, shard: int, rows: ShardRows) -> LocalRows:
        return LocalRows.copied(rows, self._scratch / f"old-{shard}-{uuid.uuid4().hex}")

    def merge(self, parts: Mapping[int, Sequence[SortedFile]]) -> Iterator[tuple[int, Path, Summary]]:
        """Merge files of new shards: see `arcbeam.store.shards.rewriting.Merging`."""
        groups = balanced({shard: sum(part.size for part in each) for shard, each in parts.items()}, self._processes)
        merges = (MergeFiles({shard: parts[shard] for shard in group}, self._scratch) for group in groups)
        for merged in self._threads.map(apart, merges):
            yield from merged


def usable() -> int:
    """Return how many processes are useful here."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, _PROCESSES)


def balanced(sizes: Mapping[int, int], groups: int) -> list[list[int]]:
    """Divide shards into at most this number of groups of about the same size, none of them empty."""
    found: list[list[int]] = [[] for _ in range(min(groups, len(sizes)))]
    filled = [0] * len(found)
    for shard in sorted(sizes, key=lambda shard: (-sizes[shard], shard)):
        least = filled.index(min(filled))
        found[least].append(shard)
        # Shards without a byte are divided, too.
        filled[least] += sizes[shard] + 1
    return [sorted(group) for group in found]


def apart(call: Callable[[], _T]) -> _T:
    """Call in a process of its own, and return or raise what it does.

    Raises:
        ArcbeamError: the process has ended without an outcome.
    """
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-m", MoveRows.__module__],
        input=pickle.dumps(call),
        stdout=subprocess.PIPE,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    if done.returncode:
        raise ArcbeamError(
            f"a process that rescales state has ended with code {done.returncode}",
            "see its output above; -9 may mean that memory is short: nothing was changed, so rescale again",
        )
    result, error = pickle.loads(done.stdout)
    if error is not None:
        raise error
    return cast("_T", result)


def _main() -> None:
    """Call what standard input has; write the outcome to standard output, which nothing else reaches."""
    outcome, sys.stdout = sys.stdout.buffer, sys.stderr
    call = pickle.load(sys.stdin.buffer)
    try:
        pickle.dump((call(), None), outcome)
    except Exception as e:
        pickle.dump((None, e), outcome)
    outcome.flush()


if __name__ == "__main__":
    _main()
