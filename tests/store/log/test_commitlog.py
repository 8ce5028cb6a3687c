"""Commits: one driver, two, and stores that do not answer."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from arcbeam.model.commits import CommitMode, Committable
from arcbeam.model.files import Shard
from arcbeam.model.timestamps import Timestamp
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.blobs.errors import (
    DeterminateError,
    FencedError,
    IncompatibleStateError,
    IndeterminateError,
    InvalidManifestError,
    JobEndedError,
    StoreError,
)
from arcbeam.store.log.chain import read_manifest
from arcbeam.store.log.commitlog import CommitLog, Committed, Conflict, Outcome, Unknown
from arcbeam.store.log.sweep import Sweeper
from arcbeam.store.manifest.names import epoch_name, manifest_name
from arcbeam.store.manifest.values import (
    KEPT_OPENINGS,
    Abandoned,
    JobShape,
    ManifestKind,
    Opening,
    OutputWatermark,
    Pin,
    StageShape,
    StageWatermarks,
)
from arcbeam.testing import Faults, UnreliableBlobs
from tests.golden.texts import check_message
from tests.store.samples import SHAPE, delta, opened, read_head


def files(blobs: DurableBlobs) -> dict[str, bytes]:
    return {info.name: blobs.get(info.name) for info in blobs.list("")}


DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "developers" / "store.md"
SCRIPTS = re.findall(r"```commits\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)


class Script:
    """Run the lines of a script of docs/developers/store.md."""

    def __init__(self, blobs: DurableBlobs) -> None:
        self.blobs = blobs
        self.store = UnreliableBlobs(blobs, 1)
        self.stores: dict[str, UnreliableBlobs] = {}
        self.logs: dict[str, CommitLog] = {}

    def run(self, who: str, verb: str, fault: str) -> str:
        store = self.stores.get(who)
        if store is None:
            store = self.stores[who] = UnreliableBlobs(self.blobs, 1, beside=self.store)
        store.faults = Faults(**({fault: 1.0} if fault else {}), landing=0.0)
        try:
            if verb == "opens":
                self.logs[who] = opened(store)
                return self.reported(Committed(self.logs[who].head))
            log = self.logs[who]
            return self.reported(log.resolve() if verb == "resolves" else log.propose(log.draft(Timestamp(0))))
        except InvalidManifestError as e:
            micro_batch = re.search(r"the outcome of micro-batch (\d+)", str(e))
            assert micro_batch is not None
            return f"refused: the outcome of micro-batch {micro_batch[1]} is open"
        except FencedError as e:
            found = re.search(r"micro-batch (\d+) is of epoch (\d+)", str(e))
            assert found is not None
            return f"fenced out by micro-batch {found[1]} of epoch {found[2]}"
        except DeterminateError:
            return "refused: nothing happened"

    @staticmethod
    def reported(outcome: Outcome) -> str:
        match outcome:
            case Committed(m):
                return f"micro-batch {m.micro_batch} of epoch {m.epoch}"
            case Conflict(m):
                return f"conflict with micro-batch {m.micro_batch} of epoch {m.epoch}"
            case Unknown():
                return "unknown"


@pytest.mark.contract("STORE-01", "STORE-03")
@pytest.mark.parametrize("script", SCRIPTS, ids=[f"script{i}" for i in range(len(SCRIPTS))])
def test_scripts_of_document_run(blobs: DurableBlobs, script: str) -> None:
    runner = Script(blobs)
    for line in script.strip().splitlines():
        if line == "time passes":
            runner.store.settle()
            continue
        reported = re.fullmatch(r"(\w+) (\w+)(?:, (\w+))? +-> (.*)", line)
        assert reported is not None, line
        who, verb, fault, expected = reported.groups()
        assert runner.run(who, verb, fault or "") == expected, line


def test_document_has_scripts() -> None:
    assert len(SCRIPTS) >= 4


@pytest.mark.contract("STORE-01")
def test_committed_micro_batch_is_read_back(blobs: DurableBlobs) -> None:
    log = opened(blobs)
    assert log.head.kind == ManifestKind.OPENING
    files = Shard(1, 0, (delta(1, log.epoch),))
    marks = StageWatermarks("count", Timestamp(3), Timestamp(2), (OutputWatermark("out", Timestamp(1)),))
    manifest = log.draft(
        Timestamp(5),
        shards=(files,),
        watermarks=(marks,),
        committables=(Committable("write", b"part"),),
        progress=b"machine",
        attempts_digest=b"digest",
    )
    assert log.propose(manifest) == Committed(manifest)
    assert read_head(blobs) == log.head == manifest
    after = log.draft(Timestamp(6))
    assert (after.shards, after.watermarks, after.progress) == ((files,), (marks,), b"machine")
    assert (after.committables, after.attempts_digest) == ((), b""), "a micro-batch's own are not the next one's"


@pytest.mark.contract("STORE-01")
def test_opening_keeps_unpublished_committables(memory: DurableBlobs) -> None:
    log = opened(memory)
    log.propose(log.draft(Timestamp(1), committables=(Committable("write", b"part"),)))
    assert opened(memory).head.committables == (Committable("write", b"part"),)


@pytest.mark.contract("STORE-03")
def test_fenced_driver_names_the_other(memory: DurableBlobs) -> None:
    first = opened(memory, driver="host-a, process 7")
    opened(memory, driver="host-b, process 9")
    assert isinstance(first.propose(first.draft(Timestamp(1))), Conflict)
    error = first.fenced()
    assert error is not None
    check_message("job-taken-over", str(error))
    with pytest.raises(FencedError, match="host-b"):
        first.propose(first.draft(Timestamp(1)))


@pytest.mark.parametrize("record", [b"", b"{}", b'{"driver": "", "time": 0}', b'{"driver": "x", "time": 1e99}'])
def test_unreadable_epoch_record_leaves_error_without_name(record: bytes, memory: DurableBlobs) -> None:
    first = opened(memory, driver="host-a")
    other = opened(memory, driver="host-b")
    memory.put(epoch_name(other.epoch), record)
    error = first.overtaken()
    assert error is not None
    assert "host-b" not in str(error)


@pytest.mark.contract("STORE-03")
def test_overtaken_needs_a_manifest_not_an_epoch(memory: DurableBlobs) -> None:
    blobs = UnreliableBlobs(memory, 0)
    first = opened(blobs)
    assert first.overtaken() is None
    memory.put(epoch_name(2), b"{}")  # of one that died before its opening
    assert first.overtaken() is None
    opened(memory)
    blobs.faults = Faults(unread=1.0)
    assert first.overtaken() is None, "the store does not answer"
    blobs.faults = Faults()
    error = first.overtaken()
    assert error is not None
    assert "micro-batch 1 is of epoch 3" in str(error)
    with pytest.raises(FencedError):
        first.propose(first.draft(Timestamp(1)))


@pytest.mark.contract("STORE-03")
def test_later_epoch_wins_concurrent_opening(memory: DurableBlobs) -> None:
    class Slow(UnreliableBlobs):
        """Let another driver open when a manifest is about to be created."""

        def create(self, name: str, data: bytes) -> bool:
            if name.startswith("manifests/") and not others:
                others.append(opened(memory))
            return super().create(name, data)

    others: list[CommitLog] = []
    with pytest.raises(FencedError, match="micro-batch 0 is of epoch 2, this driver has epoch 1"):
        opened(Slow(memory, 1))
    assert others[0].head.micro_batch == 0
    others.clear()
    with pytest.raises(FencedError, match="epoch 4, this driver has epoch 3"):
        opened(Slow(memory, 1))
    assert [others[0].head.micro_batch, others[0].epoch] == [1, 4]


@pytest.mark.contract("STORE-03")
def test_missing_opening_is_not_a_hold(memory: DurableBlobs) -> None:
    with pytest.raises(IndeterminateError):
        opened(UnreliableBlobs(memory, 1, Faults(lost=1.0)))
    assert read_head(memory) is None
    assert opened(memory).head.micro_batch == 0


@pytest.mark.contract("STORE-01")
def test_falling_watermark_is_refused(memory: DurableBlobs) -> None:
    log = opened(memory)

    def at(upstream: int, into: int, out: int) -> tuple[StageWatermarks, ...]:
        output = OutputWatermark("out", Timestamp(out))
        return (StageWatermarks("count", Timestamp(upstream), Timestamp(into), (output,)),)

    log.propose(log.draft(Timestamp(1), watermarks=at(5, 5, 5)))
    for marks, what in ((at(4, 5, 5), "upstream"), (at(5, 4, 5), "input"), (at(5, 5, 4), "output 'out'")):
        with pytest.raises(InvalidManifestError, match=f"the {what} watermark of stage 'count' falls from 5 to 4"):
            log.propose(log.draft(Timestamp(2), watermarks=marks))
    with pytest.raises(InvalidManifestError, match="'count'"):
        log.propose(log.draft(Timestamp(2), watermarks=()))
    assert isinstance(log.propose(log.draft(Timestamp(2), watermarks=at(5, 5, 6))), Committed)


@pytest.mark.contract("STORE-02")
def test_file_of_another_micro_batch_is_refused(memory: DurableBlobs) -> None:
    log = opened(memory)
    kept, other = delta(1, log.epoch), delta(1, log.epoch)
    log.propose(log.draft(Timestamp(1), shards=(Shard(1, 0, (kept,)),)))
    wrong = {
        r"'shards/1/0/.*' .* micro-batch 2 of epoch 1": (
            Shard(1, 0, (kept, replace(other, first_micro_batch=2, last_micro_batch=2))),
        ),
        "'elsewhere'": (Shard(1, 0, (replace(kept, name="elsewhere"),)),),
        r"shard 0 of level 1 .*micro-batches 1 to 1": (Shard(1, 0, (delta(2, log.epoch), kept)),),
        "a shard occurs twice": (Shard(1, 0, (kept,)), Shard(1, 0, (kept,))),
        "of epoch 1": (Shard(1, 0, (kept, delta(2, log.epoch + 1))),),
    }
    for what, shards in wrong.items():
        with pytest.raises(InvalidManifestError, match=what):
            log.propose(log.draft(Timestamp(2), shards=shards))
    assert isinstance(log.propose(log.draft(Timestamp(2), shards=(Shard(1, 0, (kept, delta(2, 1))),))), Committed)


def test_foreign_or_stale_proposal_is_refused(memory: DurableBlobs) -> None:
    log = opened(memory)
    draft = log.draft(Timestamp(1))
    for other in (
        replace(draft, micro_batch=2),
        replace(draft, epoch=2),
        replace(draft, epoch=0),
        replace(draft, parent="x"),
        replace(draft, job="x"),
        replace(draft, token=log.head.token),
        replace(draft, time=Timestamp(-1)),
        replace(draft, shape=replace(SHAPE, shards=5)),
        replace(draft, abandoned=(Abandoned(1, 1),)),
        replace(draft, pins=(Pin("x", 0, Timestamp(0)),)),
    ):
        with pytest.raises(InvalidManifestError, match=r"micro-batch \d+ "):
            log.propose(other)
    assert isinstance(log.propose(draft), Committed)


@pytest.mark.contract("STORE-05")
def test_resume_from_savepoint_abandons_later_micro_batches(memory: DurableBlobs) -> None:
    log = opened(memory)
    early = Shard(1, 0, (delta(1, log.epoch),))
    log.propose(log.draft(Timestamp(1), shards=(early,), pins=(Pin("before", 1, Timestamp(1)),)))
    log.propose(log.draft(Timestamp(2), shards=(Shard(1, 0, (*early.files, delta(2, log.epoch))),)))
    with pytest.raises(StoreError, match=r"'after' in 'memory://'\n.*: before"):
        opened(memory, savepoint="after")
    resumed = opened(memory, savepoint="before")
    assert resumed.head.shards == (early,)
    assert resumed.head.abandoned == (Abandoned(2, 2, 1),)
    assert [micro_batch for micro_batch in range(5) if resumed.head.contains(micro_batch)] == [0, 1, 3]
    resumed.propose(resumed.draft(Timestamp(3)))
    again = opened(memory, savepoint="before").head
    assert [micro_batch for micro_batch in range(7) if again.contains(micro_batch)] == [0, 1, 5]
    assert read_manifest(memory, 2).shards != read_head(memory).shards  # type: ignore[union-attr]
    assert [opening.micro_batch for opening in again.openings] == [0, 5], "the one at micro-batch 3 does not lead there"


def test_manifest_has_its_newest_openings(memory: DurableBlobs) -> None:
    drivers = [opened(memory) for _ in range(KEPT_OPENINGS + 3)]
    newest = tuple(Opening(each.head.micro_batch, each.head.token) for each in drivers[-KEPT_OPENINGS:])
    assert drivers[-1].head.openings == newest
    following = drivers[-1].draft(Timestamp(1))
    assert following.openings == newest
    with pytest.raises(InvalidManifestError, match="openings"):
        drivers[-1].propose(replace(following, openings=newest[1:]))


@pytest.mark.contract("STORE-05")
def test_resume_from_older_savepoint_keeps_others(memory: DurableBlobs) -> None:
    log = opened(memory)
    for micro_batch in (1, 2, 3):
        pins = (*log.head.pins, Pin(f"s{micro_batch}", micro_batch, Timestamp(micro_batch)))
        log.propose(
            log.draft(Timestamp(micro_batch), shards=(Shard(1, 0, (delta(micro_batch, log.epoch),)),), pins=pins)
        )
    log.propose(log.draft(Timestamp(4), pins=tuple(pin for pin in log.head.pins if pin.name != "s2")))
    resumed = opened(memory, savepoint="s1")
    assert [pin.name for pin in resumed.head.pins] == ["s1", "s3"], "a deleted savepoint stays deleted"
    resumed.propose(resumed.draft(Timestamp(5)))
    Sweeper(resumed, keep=1).sweep()
    later = opened(memory, savepoint="s3")
    assert later.head.pins == resumed.head.pins
    assert later.head.shards == read_manifest(memory, 3).shards
    assert [micro_batch for micro_batch in range(later.head.micro_batch + 1) if later.head.contains(micro_batch)] == [
        0,
        1,
        2,
        3,
        later.head.micro_batch,
    ]


@pytest.mark.contract("STORE-05")
def test_changed_pipeline_is_refused_by_stage(memory: DurableBlobs) -> None:
    numbers, texts = "state seen: bag<VarIntCoder>", "state seen: bag<StrUtf8Coder>"
    shape = JobShape("p", 4, tuple(StageShape(name, 1, numbers) for name in ("a", "b", "c", "d")))
    CommitLog.open(memory, shape, Timestamp(0))
    changed = JobShape("q", 4, tuple(StageShape(*of) for of in (("a", 2, numbers), ("b", 1, texts), ("d", 1, numbers))))
    with pytest.raises(IncompatibleStateError) as refused:
        CommitLog.open(memory, changed, Timestamp(0))
    check_message("changed-pipeline", str(refused.value))
    with pytest.raises(IncompatibleStateError, match=r" 4 shards .* 8 "):
        CommitLog.open(memory, replace(shape, shards=8), Timestamp(0))
    more = replace(shape, stages=(*shape.stages, StageShape("e", 1, "new"), StageShape("f", 1, "")))
    assert CommitLog.open(memory, more, Timestamp(0)).head.shape == more
    fewer = replace(more, stages=more.stages[:-1])
    assert CommitLog.open(memory, fewer, Timestamp(0)).head.shape == fewer, "a stage without state may be removed"


@pytest.mark.contract("STORE-05")
def test_drained_job_is_resumed_only_by_force(memory: DurableBlobs) -> None:
    log = opened(memory)
    log.propose(log.draft(Timestamp(1), mode=CommitMode.DRAINED))
    with pytest.raises(JobEndedError, match=r"drained, micro-batch 1\b"):
        opened(memory)
    assert opened(memory, force=True).head.mode == CommitMode.RUNNING


@pytest.mark.contract("END-01", "END-02")
@pytest.mark.parametrize("mode", [CommitMode.DONE, CommitMode.DRAINED])
def test_finishing_an_ended_job_writes_nothing(memory: DurableBlobs, mode: CommitMode) -> None:
    log = opened(memory)
    committables = (Committable("write", b"part"),)
    log.propose(log.draft(Timestamp(1), mode=mode, committables=committables))
    head, before = log.head, files(memory)
    for _ in range(2):  # the driver that finishes it may die, too
        log = opened(memory, finish=True, job_graph=lambda epoch, before: "another")
        assert (log.head, log.epoch, files(memory)) == (head, head.epoch, before)
        assert log.head.committables == committables
        with pytest.raises(InvalidManifestError):
            log.propose(log.draft(Timestamp(2)))
    with pytest.raises(JobEndedError):
        opened(memory)
    assert opened(memory, finish=True, force=True).head.mode == CommitMode.RUNNING, "force resumes it"


def test_job_that_ends_during_opening_is_finished(memory: DurableBlobs) -> None:
    log = opened(memory)
    ended = log.draft(Timestamp(1), mode=CommitMode.DONE)

    def job_graph(epoch: int, before: str) -> str:
        """Let the earlier driver make its last commit when this one is about to begin its epoch."""
        if log.head is not ended:
            log.propose(ended)
        return ""

    assert opened(memory, finish=True, job_graph=job_graph).head == ended
    assert opened(memory, finish=True).head == ended


def test_ended_job_refuses_further_micro_batch(memory: DurableBlobs) -> None:
    log = opened(memory)
    log.propose(log.draft(Timestamp(1), mode=CommitMode.DONE))
    with pytest.raises(InvalidManifestError, match="has ended"):
        log.propose(log.draft(Timestamp(2)))


def test_running_job_is_not_finished(memory: DurableBlobs) -> None:
    log = opened(memory)
    log.propose(log.draft(Timestamp(1), pins=(Pin("last", 1, Timestamp(1)),), mode=CommitMode.DRAINED))
    assert opened(memory, savepoint="last", force=True).head.mode == CommitMode.RUNNING
    assert opened(memory, finish=True).head.mode == CommitMode.RUNNING
    log = opened(memory)
    log.propose(log.draft(Timestamp(2), mode=CommitMode.DRAINING))
    assert opened(memory, finish=True).head.mode == CommitMode.DRAINING


def test_suspended_job_is_resumed(memory: DurableBlobs) -> None:
    log = opened(memory)
    log.propose(log.draft(Timestamp(1), mode=CommitMode.SUSPENDED))
    assert opened(memory).head.mode == CommitMode.RUNNING


@pytest.mark.contract("STORE-01")
@pytest.mark.parametrize("why", ["shape", "savepoint", "ended", "damaged"])
def test_refused_driver_changes_nothing(memory: DurableBlobs, why: str) -> None:
    log = opened(memory)
    assert isinstance(log.propose(log.draft(Timestamp(1))), Committed)
    if why == "ended":
        log.propose(log.draft(Timestamp(2), mode=CommitMode.DONE))
    if why == "damaged":
        memory.put(manifest_name(1), memory.get(manifest_name(1))[:-3])

    before = files(memory)
    shape = replace(SHAPE, shards=8) if why == "shape" else SHAPE
    with pytest.raises(StoreError):
        CommitLog.open(memory, shape, Timestamp(3), savepoint="nosuch" if why == "savepoint" else "")
    assert files(memory) == before
    assert log.is_newest(), "otherwise the running driver would never delete anything again"


def test_driver_without_job_graph_begins_no_epoch(memory: DurableBlobs) -> None:
    log = opened(memory)

    def fails(epoch: int, before: str) -> str:
        raise DeterminateError("disk is full", "free some space")

    with pytest.raises(DeterminateError, match="disk is full"):
        opened(memory, job_graph=fails)
    assert log.is_newest()
    assert isinstance(log.propose(log.draft(Timestamp(0))), Committed)


def test_job_graph_is_stored_again_after_conflict(memory: DurableBlobs) -> None:
    opened(memory, job_graph=lambda *_: "job_graphs/first")
    calls: list[tuple[int, str]] = []

    def kept(epoch: int, before: str) -> str:
        calls.append((epoch, before))
        if len(calls) == 1:
            opened(memory, job_graph=lambda *_: "job_graphs/faster")
        return f"job_graphs/{epoch}"

    assert opened(memory, job_graph=kept).head.job_graph == "job_graphs/3"
    assert calls == [(2, "job_graphs/first"), (3, "job_graphs/faster")]
    calls.append((0, ""))
    assert opened(memory, job_graph=kept).head.job_graph == "job_graphs/4"
    assert calls[3:] == [(4, "job_graphs/3")], "without a conflict it is called once"
