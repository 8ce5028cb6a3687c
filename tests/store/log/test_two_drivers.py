"""Drivers that do not know of each other, on a store with all faults: one history, and none of it is lost.

Sometimes the newest manifest is damaged. Then its savepoints must be complete, as the previous micro-batch has them.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from obstore.store import MemoryStore, S3Store

from arcbeam.model.files import Shard, ShardFile
from arcbeam.model.timestamps import Timestamp
from arcbeam.store.blobs.errors import (
    DamagedFileError,
    DeterminateError,
    FencedError,
    IndeterminateError,
    InvalidManifestError,
    MissingFileError,
    StoreError,
)
from arcbeam.store.blobs.objects import ObjectBlobs
from arcbeam.store.log.chain import UnreadableHead, newest_epoch, read_newest
from arcbeam.store.log.commitlog import CommitLog, Committed, Conflict, Outcome, Unknown
from arcbeam.store.log.savepoints import pinned, unpinned
from arcbeam.store.log.sweep import Sweeper
from arcbeam.store.manifest.manifestfile import decode
from arcbeam.store.manifest.names import MANIFESTS, manifest_name
from arcbeam.store.manifest.values import Manifest, ManifestKind
from arcbeam.testing import Faults, UnreliableBlobs
from tests.store.samples import delta, opened

DRIVERS = st.integers(0, 2)
STALE = Faults(stale=1.0, landing=0.0)
UNCLEAR = [
    Faults(late=1.0, landing=0.0),
    Faults(refused=0.5, late=0.5, landing=0.0),
    Faults(lost=0.5, late=0.5, landing=0.0),
    Faults(silent=1.0, unread=1.0),
]
FAULTS = [
    Faults(),
    Faults(stale=1.0),
    Faults(refused=0.05, lost=0.1, silent=0.1, late=0.1, repeated=0.1, unread=0.05, stale=0.4),
    Faults(refused=0.1, late=0.2, landing=0.1),
    Faults(silent=0.5, repeated=0.5, unread=0.2, stale=0.5),
]


class History(ObjectBlobs):
    """A store that records which manifest was the first of its micro-batch, and so is committed; and which ones are
    damaged."""

    def __init__(self, store: Any = None) -> None:
        super().__init__(store or MemoryStore(), "memory://")
        self.real: list[Manifest] = []
        self.damaged: set[int] = set()

    def create(self, name: str, data: bytes) -> bool:
        created = super().create(name, data)
        if created and name.startswith(f"{MANIFESTS}/"):
            manifest = decode(data, name, self)
            assert manifest.micro_batch <= len(self.real), "a micro-batch without the one before it"
            if manifest.micro_batch == len(self.real):
                self.real.append(manifest)
        return created


def by_itself(rule: Any) -> Any:
    """Run one rule of a driver at once: while it sleeps in the middle of one, it does nothing else."""

    @functools.wraps(rule)
    def does(self: Drivers, who: int, *args: Any, **kwargs: Any) -> None:
        if who not in self.busy:
            self.busy.add(who)
            try:
                rule(self, who, *args, **kwargs)
            finally:
                self.busy.discard(who)

    return does


class Drivers(RuleBasedStateMachine):
    """Three places at which a driver may open, work, sleep, and wake."""

    def __init__(self, store: Any = None) -> None:
        super().__init__()
        self.history = History(store)
        first = UnreliableBlobs(self.history, 0)
        self.stores = [first, *(UnreliableBlobs(self.history, seed, beside=first) for seed in (1, 2))]
        self.logs: dict[int, CommitLog] = {}
        self.sweepers: dict[int, Sweeper] = {}
        self.busy: set[int] = set()
        self.committed: list[Manifest] = []
        self.refused: list[Manifest] = []
        self.savepoints = 0

    @rule(
        order=st.permutations(range(3)), calls=st.integers(0, 12), micro_batches=st.integers(0, 3), swept=st.booleans()
    )
    def open_and_sleep(self, order: list[int], calls: int, micro_batches: int, swept: bool) -> None:
        """Between two calls of its opening, a driver sleeps; a running one continues; a third one takes over."""
        who, running, third = order

        def work() -> None:
            self.work(running, micro_batches, swept)
            self.open(third)
            self.work(third, 6, True)

        self.stores[who].interrupt(calls, work)
        self.open(who)
        self.work(who, 1, False)

    @rule(who=DRIVERS, calls=st.integers(0, 12), by=DRIVERS, opens=st.booleans(), micro_batches=st.integers(0, 6))
    def sleep(self, who: int, calls: int, by: int, opens: bool, micro_batches: int) -> None:
        """Between two calls of its next action, a driver sleeps, and another one works."""

        def work() -> None:
            if opens:
                self.open(by)
            self.work(by, micro_batches, True)

        self.stores[who].interrupt(calls, work)

    @rule(who=DRIVERS, micro_batches=st.integers(1, 6), swept=st.booleans())
    def work(self, who: int, micro_batches: int, swept: bool) -> None:
        """Commit some micro-batches."""
        for _ in range(micro_batches):
            self.commit(who, "", swept)
        if swept:
            self.sweep(who)

    @rule(seed=st.integers(0, 1_000), faults=st.sampled_from(FAULTS))
    def weather(self, seed: int, faults: Faults) -> None:
        for i, store in enumerate(self.stores):
            store.reseed(seed + i)
            store.faults = faults

    @rule(who=DRIVERS)
    @by_itself
    def open(self, who: int) -> None:
        self.logs.pop(who, None)
        try:
            log = opened(self.stores[who])
        except (IndeterminateError, DeterminateError, FencedError):
            return
        except DamagedFileError:
            assert self.history.damaged
            return
        self.logs[who], self.sweepers[who] = log, Sweeper(log, keep=2)
        self.committed.append(log.head)

    @precondition(lambda self: any(m.pins for m in self.history.real[-1:]))
    @rule(who=DRIVERS)
    def resume_from_a_savepoint(self, who: int) -> None:
        self.resume(who, self.history.real[-1])

    @by_itself
    def resume(self, who: int, head: Manifest) -> None:
        self.logs.pop(who, None)
        try:
            log = opened(self.stores[who], savepoint=head.pins[-1].name)
        except (IndeterminateError, DeterminateError, FencedError):
            return
        except StoreError as e:
            # It was deleted meanwhile, or the manifest that names it is damaged.
            assert f"'{head.pins[-1].name}'" in str(e) or self.history.damaged  # noqa: PT017
            return
        self.logs[who], self.sweepers[who] = log, Sweeper(log, keep=2)
        self.committed.append(log.head)

    @rule(who=DRIVERS, micro_batches=st.integers(0, 4), gives_up=st.booleans(), resumes=st.booleans())
    def damage(self, who: int, micro_batches: int, gives_up: bool, resumes: bool) -> None:
        """Damage the newest manifest, which may just have deleted a savepoint. A driver may resume from one."""
        if gives_up:
            if who not in self.logs or self.logs[who].fenced():
                self.open(who)
            self.commit(who, "make", False)
            self.work(who, micro_batches, True)
            self.commit(who, "give up", False)
            self.sweep(who)
        head = next(reversed(self.history.real), None)
        if head is None or head.micro_batch in {pin.micro_batch for pin in head.pins}:
            return
        self.history.put(manifest_name(head.micro_batch), b"something else")
        self.history.damaged.add(head.micro_batch)
        before = self.newest_readable()
        if resumes and before is not None and before.pins:
            self.resume(who, before)

    def newest_readable(self) -> Manifest | None:
        newest = read_newest(self.history)
        return newest.before if isinstance(newest, UnreadableHead) else newest

    def files(self, log: CommitLog) -> tuple[Shard, ...]:
        """Return two attempts' deltas of a task; the first one counts. Sometimes it replaces all earlier files."""
        attempts = [delta(log.head.micro_batch + 1, log.epoch) for _ in range(2)]
        for file in attempts:
            self.history.put(file.name, b"x")
        before: tuple[ShardFile, ...] = log.head.shards[0].files if log.head.shards else ()
        return (Shard(1, 0, (*(() if len(before) > 2 else before), attempts[0])),)

    @rule(who=DRIVERS, savepoint=st.sampled_from(["", "make", "give up"]), swept=st.booleans())
    @by_itself
    def commit(self, who: int, savepoint: str, swept: bool) -> None:
        log = self.logs.get(who)
        if log is None or log.fenced():
            return
        draft = log.draft(Timestamp(0), shards=self.files(log))
        if swept:
            self.sweep_now(who)
        try:
            if savepoint == "make":
                self.savepoints += 1
                draft = pinned(draft, f"s{self.savepoints}")
            elif savepoint and draft.pins:
                draft = unpinned(draft, draft.pins[0].name)
            self.decided(draft, log.propose(draft))
        except DeterminateError:
            self.refused.append(draft)
        except InvalidManifestError as e:
            assert log.pending is not None, e  # noqa: PT017
        except DamagedFileError:
            assert draft.micro_batch in self.history.damaged, "its driver is unknown"

    @rule(who=DRIVERS, faults=st.sampled_from(UNCLEAR), lands=st.booleans(), again=st.booleans())
    def commit_without_an_answer(self, who: int, faults: Faults, lands: bool, again: bool) -> None:
        """Commit with an outcome that is most likely unknown; it may happen or not, and is resolved or ignored."""
        before, self.stores[who].faults = self.stores[who].faults, faults
        self.commit(who, "", False)
        self.stores[who].faults = before
        if lands:
            self.stores[who].settle()
        if again:
            self.commit(who, "", False)

    @rule(who=DRIVERS)
    @by_itself
    def resolve(self, who: int) -> None:
        log = self.logs.get(who)
        if log is not None and log.pending is not None:
            with contextlib.suppress(DeterminateError, DamagedFileError):
                self.decided(log.pending, log.resolve())

    def decided(self, proposed: Manifest, outcome: Outcome) -> None:
        match outcome:
            case Committed(manifest):
                assert manifest == proposed
                self.committed.append(manifest)
            case Conflict(found):
                assert found.epoch > proposed.epoch
                self.refused.append(proposed)
            case Unknown(manifest):
                assert manifest == proposed

    @rule(who=DRIVERS)
    @by_itself
    def sweep(self, who: int) -> None:
        if who in self.logs:
            self.sweep_now(who)

    def sweep_now(self, who: int) -> None:
        try:
            self.sweepers[who].sweep()
        except (IndeterminateError, DeterminateError):
            pass
        except MissingFileError:  # who was fenced out looks for what others have swept
            assert newest_epoch(self.history) > self.logs[who].epoch

    @rule(who=DRIVERS)
    def time_passes(self, who: int) -> None:
        self.stores[who].settle()

    @invariant()
    def one_history(self) -> None:
        real = self.history.real
        for manifest, following in pairwise(real):
            if following.parent or manifest.micro_batch not in self.history.damaged:
                assert following.parent == manifest.token
            else:
                assert following.kind == ManifestKind.OPENING
            assert following.epoch >= manifest.epoch
        for manifest in self.committed:
            assert real[manifest.micro_batch] == manifest, "a reported commit is in the history"
        for manifest in self.refused:
            assert manifest not in real, "a proposal that failed is not committed"

    @invariant()
    def nothing_that_counts_is_missing(self) -> None:
        if not self.history.real:
            return
        head: Manifest | None = self.history.real[-1]
        assert head is not None
        lagging = UnreliableBlobs(self.history, 1, STALE, beside=self.stores[0])
        assert newest_epoch(lagging) >= head.epoch
        for store in (self.history, lagging):
            newest = read_newest(store)
            if head.micro_batch in self.history.damaged:
                assert isinstance(newest, UnreadableHead)
                assert newest.micro_batch == head.micro_batch
            else:
                assert newest == head
        if head.micro_batch in self.history.damaged:
            head = self.newest_readable()
        if head is None:
            return
        for counts in [head, *(self.history.real[pin.micro_batch] for pin in head.pins)]:
            assert decode(self.history.get(manifest_name(counts.micro_batch)), "", "") == counts
            for name in counts.file_names():
                assert self.history.get(name) == b"x"


Drivers.TestCase.settings = settings(max_examples=20, stateful_step_count=40, deadline=None)
test_drivers_make_one_history = pytest.mark.contract("STORE-01", "STORE-02", "STORE-03", "STORE-07")(Drivers.TestCase)


@pytest.mark.contract("STORE-03", "STORE-07")
def test_drivers_on_s3_make_one_history(s3: Callable[[], S3Store]) -> None:
    few = settings(max_examples=1, stateful_step_count=12, deadline=None)
    run_state_machine_as_test(lambda: Drivers(s3()), settings=few)
