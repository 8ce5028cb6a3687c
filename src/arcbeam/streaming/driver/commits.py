"""The commits of a driver: the machine's commands about commits, carried out on a commit log.

Owns the event for each outcome of the store, savepoints, and the sweep. Must not know when anything is proposed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from typing_extensions import override

from arcbeam.engine.coordinator import (
    CommitConflicted,
    CommitDecided,
    CommitRefused,
    CommitUnknown,
    DriverFailed,
    Propose,
)
from arcbeam.engine.protocol.layout import Layout
from arcbeam.engine.protocol.microbatchplan import MicroBatchPlan
from arcbeam.model.commits import Committable
from arcbeam.model.timestamps import Timestamp
from arcbeam.store.blobs.errors import DeterminateError, FencedError, InvalidManifestError, StoreError
from arcbeam.store.log.commitlog import CommitLog, Committed, Conflict, Outcome, Unknown
from arcbeam.store.log.savepoints import changed, unpinned
from arcbeam.store.log.sweep import KEPT_MICRO_BATCHES, Sweeper, Swept
from arcbeam.store.manifest.values import Manifest
from arcbeam.streaming.assignment import TaskAssignment, ordered
from arcbeam.streaming.driver.proposals import draft
from arcbeam.streaming.driverstate import remembered
from arcbeam.streaming.interfaces import Commits, Decision


class LogCommits(Commits):
    """The commits of one driver; see `interfaces.Commits`.

    Args:
        log: the driver's commit log of the job.
        layout: the layout of the job.
        readers: the stages that read each side channel.
        warn: reports a warning to people.
        keep: the number of micro-batches before the head that a sweep keeps.
        figures: measurements of the proposed micro-batch, by name; JSON values.

    Raises:
        ValueError: a stage has another number than the job has given it, or that of another stage.
    """

    def __init__(
        self,
        log: CommitLog,
        layout: Layout,
        readers: Mapping[int, Sequence[str]],
        warn: Callable[[str], None],
        *,
        keep: int = KEPT_MICRO_BATCHES,
        figures: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        self._log, self._layout, self._readers, self._warn = log, layout, readers, warn
        self._figures = figures
        self._numbers = remembered(log.head, {placed.name: placed.number for placed in layout.stages})
        self._sweeper = Sweeper(log, keep=keep)
        # Savepoints of the head that the next commit deletes.
        self._released: set[str] = set()

    @override
    def order(self, plan: MicroBatchPlan) -> TaskAssignment:
        return ordered(plan, self._log.head, self._log.epoch)

    @override
    def unpublished(self) -> tuple[Committable, ...]:
        return self._log.head.committables

    def release(self, savepoint: str) -> None:
        """Delete a savepoint of the head with the next commit.

        Raises:
            StoreError: there is no such savepoint.
        """
        unpinned(self._log.head, savepoint)
        self._released.add(savepoint)

    @override
    def propose(self, command: Propose, now: Timestamp) -> Decision:
        manifest = self._named(
            draft(self._log, self._layout, self._readers, self._numbers, command, self._figures()), command
        )
        return self._decided(command.micro_batch, now, lambda: self._log.propose(manifest))

    @override
    def resolve(self, micro_batch: int, now: Timestamp) -> Decision:
        return self._decided(micro_batch, now, self._log.resolve)

    @override
    def overtaken(self) -> str:
        error = self._log.overtaken()
        return "" if error is None else error.message

    @override
    def sweep(self) -> Swept:
        return self._sweeper.sweep()

    def _fenced(self) -> str:
        error = self._log.fenced()
        assert error is not None
        return error.message

    def _named(self, manifest: Manifest, command: Propose) -> Manifest:
        """Return the draft with its savepoints. A name that cannot be given must not prevent the commit."""
        for name in sorted(self._released):
            manifest = unpinned(manifest, name)
        for name in command.savepoints:
            try:
                manifest = changed(manifest, name)
            except StoreError as e:
                self._warn(f"micro-batch {command.micro_batch} could not be named savepoint '{name}': {e}")
        return manifest

    def _decided(self, micro_batch: int, now: Timestamp, ask: Callable[[], Outcome]) -> Decision:
        try:
            match ask():
                case Committed(manifest):
                    self._released &= {pin.name for pin in manifest.pins}
                    self._sweeper.committed()
                    return CommitDecided(now, micro_batch)
                case Conflict():
                    return CommitConflicted(now, micro_batch, self._fenced())
                case Unknown(_, error):
                    return CommitUnknown(now, micro_batch, str(error))
        except FencedError as e:
            return CommitConflicted(now, micro_batch, e.message)
        except InvalidManifestError as e:
            return DriverFailed(now, str(e))
        except DeterminateError as e:
            return CommitRefused(now, micro_batch, str(e))
