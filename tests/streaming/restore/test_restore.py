"""Restoring a job: fitting state is kept, also under other names; the rest is refused before anything is written."""

from __future__ import annotations

from dataclasses import replace

import pytest

from arcbeam.engine.watermarks.clocks import Port
from arcbeam.engine.watermarks.stages import Watermarks
from arcbeam.model.commits import CommitMode, Committable
from arcbeam.model.files import FileKind, Shard, ShardFile
from arcbeam.model.plan import Channel, Plan, Routing, Stage
from arcbeam.model.timestamps import MAX_TIMESTAMP, Timestamp
from arcbeam.store.blobs.errors import IncompatibleStateError, StoreError
from arcbeam.store.log import jobgraphs
from arcbeam.store.log.savepoints import pinned
from arcbeam.store.manifest.jobgraphfile import JobGraph
from arcbeam.store.manifest.names import Written, written_name
from arcbeam.store.manifest.values import OutputWatermark, StageWatermarks
from arcbeam.streaming.driverstate import Progress, progress_of, started, times_of
from arcbeam.streaming.physicalplan import placed
from arcbeam.streaming.restore.restore import RestoreOptions, Taken, restore
from arcbeam.streaming.restore.stagemapping import renamed
from arcbeam.testing.blobs import MemoryBlobs

pytestmark = pytest.mark.contract("STORE-05")


def plan(sum: str = "sum", shape: str = "cells", source: str = "read") -> Plan:
    """A source, and a stage with state; both publish."""
    return Plan(
        "job",
        (
            Stage("s0", "read", (), b"", None, (0,), uid=source, publishers=(f"{source}/publish",)),
            Stage("s1", "sum", (), b"", 0, (), uid=sum, shape=shape, publishers=(f"{sum}/publish",)),
        ),
        (Channel(0, "rows", Routing.KEYED, "", "", ("s0",), ("s1",)),),
        bounded=False,
    )


def taken(blobs: MemoryBlobs, plan: Plan, how: RestoreOptions = RestoreOptions(), shards: int = 4) -> Taken:
    return restore(plan, blobs, how, shards=shards, now=Timestamp(1), driver="here")


def begun() -> MemoryBlobs:
    """A job with a micro-batch, and a savepoint of it."""
    blobs = MemoryBlobs()
    log = taken(blobs, plan()).log
    name = written_name(Written(1, 0, 1, log.epoch, "a", "delta"))
    file = ShardFile(name, FileKind.DELTA, 9, 0, 1, 0, b"a", b"a", 1, 1)
    draft = log.draft(
        Timestamp(2),
        shards=(Shard(1, 0, (file,)),),
        watermarks=(StageWatermarks("sum", Timestamp(3), Timestamp(3), (OutputWatermark("out", Timestamp(3)),)),),
        progress=Progress(("read",), "", {"read": 1, "sum": 2}).encoded(),
    )
    log.propose(pinned(draft, "safe"))
    return blobs


def test_job_keeps_its_number_of_shards() -> None:
    assert taken(begun(), plan(), shards=9).shards == 4


def test_renamed_stage_keeps_state_number_and_watermarks() -> None:
    blobs = begun()
    with pytest.raises(
        IncompatibleStateError, match="stage 'sum' has state, but the pipeline has no stage of that name"
    ):
        taken(blobs, plan("total"))
    how = RestoreOptions(renamed={"sum": "total"})
    for _ in range(2):  # repeating it is not refused
        job = taken(blobs, plan("total"), how)
        assert job.numbers == {"read": 1, "total": 2}
        assert progress_of(job.log.head).numbers == {"read": 1, "total": 2}, "also if no micro-batch follows"
        assert [of.stage for of in job.log.head.watermarks] == ["total"]
    assert taken(blobs, plan("total")).numbers["total"] == 2
    with pytest.raises(IncompatibleStateError, match="stage 'last' has a different kind of state"):
        taken(blobs, plan("last", "others"), RestoreOptions(renamed={"total": "last"}))


def test_state_without_stage_is_dropped_permanently_if_allowed() -> None:
    blobs = begun()
    with pytest.raises(IncompatibleStateError, match=r"- stage 'sum' has state, .*(?s:.)* --allow_dropped_state"):
        taken(blobs, plan("total"))
    drop = RestoreOptions(drop=True)
    job = taken(blobs, plan("total"), drop)
    assert job.dropped == ("stage 'sum' has state, but the pipeline has no stage of that name",)
    assert [of.stage for of in job.log.head.shape.stages] == ["read", "total"]
    assert job.numbers == {"read": 1, "total": 3}, "its rows still exist, so no stage receives its number"
    # A stage of that name does not find its old state.
    back = taken(blobs, plan(), drop)
    assert back.dropped == ("stage 'total' has state, but the pipeline has no stage of that name",)
    assert back.numbers["sum"] not in (1, 2)
    assert taken(blobs, plan(), drop).dropped == (), "repeating it drops nothing more"
    with pytest.raises(IncompatibleStateError, match="stage 'sum' has a different kind of state"):
        taken(blobs, plan(shape="others"), drop)
    # The savepoint still has the state.
    assert taken(blobs, plan(), RestoreOptions("safe")).numbers["sum"] == 2


@pytest.mark.contract("END-01", "END-06")
@pytest.mark.parametrize("mode", [CommitMode.RUNNING, CommitMode.SUSPENDED])
def test_committables_without_publisher_are_refused_or_dropped(mode: CommitMode) -> None:
    blobs = begun()
    log = taken(blobs, plan()).log
    parts = tuple(
        Committable(f"{stage}/publish", data) for stage, data in (("sum", b"a"), ("sum", b"b"), ("read", b"c"))
    )
    log.propose(replace(log.draft(Timestamp(4)), mode=mode, committables=parts))
    before = dict(blobs.data)
    with pytest.raises(IncompatibleStateError) as refused:
        taken(blobs, plan("total"))
    assert refused.value.message.splitlines()[1:] == [
        "  - stage 'sum' has state, but the pipeline has no stage of that name",
        "  - 'sum/publish' has 2 perhaps unpublished committable(s), but the pipeline has no such publisher",
    ]
    assert blobs.data == before
    assert taken(blobs, plan()).log.head.committables == parts
    how = RestoreOptions(renamed={"sum": "total", "sum/publish": "total/publish"})
    renamed = taken(blobs, plan("total"), how).log.head.committables
    publishers = ["total/publish", "total/publish", "read/publish"]
    assert [of.stage for of in renamed] == publishers, "renamed publishers publish"
    assert taken(blobs, plan("total"), how).log.head.committables == renamed
    job = taken(blobs, plan("last"), RestoreOptions(drop=True))
    assert job.log.head.committables == parts[2:]
    assert [line.partition(" but ")[0] for line in job.dropped] == [
        "stage 'total' has state,",
        "'total/publish' has 2 perhaps unpublished committable(s),",
    ]


def test_old_savepoint_resumes_under_new_name() -> None:
    blobs = begun()
    taken(blobs, plan("total"), RestoreOptions(renamed={"sum": "total"}))
    job = taken(blobs, plan("total"), RestoreOptions("safe", renamed={"sum": "total"}))
    assert job.numbers["total"] == 2
    assert job.log.head.abandoned


@pytest.mark.parametrize(
    ("names", "why"),
    [
        ({"sun": "total"}, r"no stage 'sun'\n.*stages that the job has: 'read', 'sum'"),
        ({"sum": "read"}, "more than one stage would be named 'read'"),
        ({"sum": "x", "read": "x"}, "more than one stage would be named 'x'"),
    ],
)
def test_invalid_stage_mapping_is_refused(names: dict[str, str], why: str) -> None:
    with pytest.raises(IncompatibleStateError, match=why):
        renamed(taken(begun(), plan()).log.head, names)


@pytest.mark.parametrize("names", [{"sum": "read", "read": "sum"}, {"sum": "read", "read": "more"}])
def test_released_name_is_free_after_next_opening(names: dict[str, str]) -> None:
    head = taken(begun(), plan()).log.head
    with pytest.raises(IncompatibleStateError, match="would receive the name of a stage"):
        renamed(head, names)


def test_applied_mapping_changes_nothing() -> None:
    head = renamed(taken(begun(), plan()).log.head, {"sum": "total"})
    assert renamed(head, {"sum": "total"}) == head


def beginning(job: Taken, plan: Plan) -> frozenset[str]:
    """The sources that begin in the next micro-batch."""
    layout = placed(plan, job.numbers, job.shards, 1).layout
    return started(job.log.head, layout, Timestamp(9)).unbegun


def test_source_in_place_of_another_is_refused() -> None:
    blobs = begun()
    before = dict(blobs.data)
    with pytest.raises(IncompatibleStateError, match=r"with the source\(s\) 'read', which .* does not have.* 'more'"):
        taken(blobs, plan(source="more"))
    assert blobs.data == before
    renamed = taken(blobs, plan(source="more"), RestoreOptions(renamed={"read": "more"}))
    assert beginning(renamed, plan(source="more")) == set(), "it is not read again"
    other = taken(blobs, plan(source="another"), RestoreOptions(drop=True))
    assert beginning(other, plan(source="another")) == {"another"}
    # If a driver dies before its first micro-batch, the next one begins it.
    again = taken(blobs, plan(source="another"), RestoreOptions(drop=True))
    assert beginning(again, plan(source="another")) == {"another"}


def test_sources_are_compared_with_the_savepoint() -> None:
    blobs = MemoryBlobs()
    log = taken(blobs, plan()).log
    log.propose(pinned(log.draft(Timestamp(2)), "fresh"))  # its sources have not begun
    head = progress_of(log.head)
    begun = Progress(("read",), head.drains_to, {"read": 1, "sum": 2}, head.script)
    log.propose(log.draft(Timestamp(3), progress=begun.encoded()))
    with pytest.raises(IncompatibleStateError, match="and without 'more'"):
        taken(blobs, plan(source="more"))
    how = RestoreOptions("fresh", discard=True)
    back = taken(blobs, plan(source="more"), how)
    assert back.log.head.abandoned
    assert list(back.warnings(how)) == ["went back to savepoint 'fresh': 1 later micro-batch(es) are discarded"]


def joined(*sources: str) -> Plan:
    """Sources that one stage reads, and the last of them another one as well."""
    ids = tuple(f"s{n}" for n in range(len(sources)))
    return Plan(
        "job",
        (
            *(Stage(id, uid, (), b"", None, (0,), uid=uid) for id, uid in zip(ids[:-1], sources[:-1], strict=True)),
            Stage(ids[-1], sources[-1], (), b"", None, (0, 1), uid=sources[-1]),
            Stage("t", "sum", (), b"", 0, (), uid="sum", shape="cells"),
            Stage("u", "beside", (), b"", 1, (), uid="beside"),
        ),
        (
            Channel(0, "rows", Routing.KEYED, "", "", ids, ("t",)),
            Channel(1, "rows", Routing.KEYED, "", "", ids[-1:], ("u",)),
        ),
        bounded=False,
    )


@pytest.mark.parametrize("at", [Timestamp(40), MAX_TIMESTAMP])
def test_additional_source_does_not_decrease_watermarks(at: Timestamp) -> None:
    blobs = MemoryBlobs()
    log = taken(blobs, joined("read")).log
    outputs = (OutputWatermark("rows", at), OutputWatermark("rows#2", at))
    marks = (StageWatermarks("read", MAX_TIMESTAMP, at, outputs), StageWatermarks("sum", at, at, ()))
    known = Progress(("read",), "", {"read": 1, "sum": 2, "beside": 3}).encoded()
    log.propose(pinned(log.draft(Timestamp(2), watermarks=marks, progress=known), "safe"))
    more = joined("read", "more")
    if at == MAX_TIMESTAMP:
        before = dict(blobs.data)
        with pytest.raises(IncompatibleStateError, match=r"the input of 'sum' has ended, .* 'more': .* late"):
            taken(blobs, more)
        assert blobs.data == before
        return
    job = taken(blobs, more)
    assert beginning(job, more) == {"more"}
    times = times_of(job.log.head)
    layout = placed(more, job.numbers, job.shards, 1).layout
    marks_of = Watermarks(layout.flows, times)
    assert (marks_of.upstream("sum"), times.inputs["sum"]) == (at, at), "earlier elements are late"
    assert marks_of.upstream("beside") < at, "a new stage has received no watermark"


def test_folder_named_like_savepoint_is_explained() -> None:
    with pytest.raises(StoreError, match=r"no savepoint 'x'.*\n.*savepoints/x is .* savepoint: .* another name"):
        taken(MemoryBlobs(), plan(), RestoreOptions("x"))


def test_refused_restore_stores_no_job_graph() -> None:
    blobs = begun()
    before = dict(blobs.data)
    with pytest.raises(IncompatibleStateError):
        taken(blobs, plan("total"), RestoreOptions(job_graph=JobGraph("job", b"proto")))
    assert blobs.data == before


def fan(*rows: str) -> Plan:
    """A source whose outputs go to one stage."""
    indexes = tuple(range(len(rows)))
    return Plan(
        "job",
        (
            Stage("s0", "read", (), b"", None, indexes, uid="read"),
            *(Stage(f"t{n}", f"sum {n}", (), b"", n, (), uid=f"sum {n}") for n in indexes),
        ),
        tuple(Channel(n, name, Routing.KEYED, "", "", ("s0",), (f"t{n}",)) for n, name in enumerate(rows)),
        bounded=False,
    )


def test_new_output_begins_at_earliest_other_output() -> None:
    blobs = MemoryBlobs()
    log = taken(blobs, fan("rows", "slow")).log
    fast, slow = Timestamp(40), Timestamp(30)
    marks = (
        StageWatermarks("read", MAX_TIMESTAMP, slow, (OutputWatermark("rows", fast), OutputWatermark("slow", slow))),
        StageWatermarks("sum 0", fast, fast, ()),
        StageWatermarks("sum 1", slow, slow, ()),
    )
    begun = Progress(("read",), "", {"read": 1, "sum 0": 2, "sum 1": 3}).encoded()
    log.propose(pinned(log.draft(Timestamp(2), watermarks=marks, progress=begun), "safe"))
    for rows, at in (
        (("rows", "more"), (fast, slow)),
        (("slow",), (slow,)),
        (("lines", "slow", "more"), (slow, slow, slow)),
    ):
        head = taken(blobs, fan(*rows), RestoreOptions("safe")).log.head
        assert times_of(head).outputs == {Port("read", name): time for name, time in zip(rows, at, strict=True)}
        kept = {of.stage: of for of in head.watermarks}
        # A received watermark does not decrease: earlier elements of another input are late.
        assert (kept["read"].upstream, kept["sum 0"].upstream, kept["sum 0"].input) == (MAX_TIMESTAMP, fast, fast)


def between(*new: str) -> Plan:
    """A source and a stage that reads it, with others between them."""
    ids = ("s0", *(f"n{n}" for n in range(len(new))), "s1")
    uids = ("read", *new, "sum")
    stages = tuple(
        Stage(id, uid, (), b"", n - 1 if n else None, (n,) if n < len(new) + 1 else (), uid=uid)
        for n, (id, uid) in enumerate(zip(ids, uids, strict=True))
    )
    channels = tuple(
        Channel(n, f"from {uids[n]}", Routing.KEYED, "", "", (ids[n],), (ids[n + 1],)) for n in range(len(new) + 1)
    )
    return Plan("job", stages, channels, bounded=False)


@pytest.mark.contract("END-05")
@pytest.mark.parametrize("at", [Timestamp(40), MAX_TIMESTAMP])
def test_new_stage_of_ended_inputs_is_at_end(at: Timestamp) -> None:
    """A stage that reads it may be at the end, and cannot return: not even to the hold of an unprepared stage."""
    blobs = MemoryBlobs()
    log = taken(blobs, between()).log
    marks = (
        StageWatermarks("read", MAX_TIMESTAMP, at, (OutputWatermark("from read", at),)),
        StageWatermarks("sum", at, at, ()),
    )
    begun = Progress(("read",), "", {"read": 1, "sum": 2}).encoded()
    log.propose(log.draft(Timestamp(2), watermarks=marks, progress=begun))
    job = taken(blobs, between("new", "next"))
    head = job.log.head
    assert job.idle == (("new", "next") if at == MAX_TIMESTAMP else ())
    assert taken(blobs, between("new", "next")).idle == (), "it is reported once"
    upstream = {of.stage: of.upstream for of in head.watermarks}
    outputs = {port.stage: time for port, time in times_of(head).outputs.items()}
    if at == MAX_TIMESTAMP:
        assert outputs == {"read": at, "new": at, "next": at}
        assert upstream == dict.fromkeys(("read", "new", "next", "sum"), at)
    else:
        assert outputs == {"read": at}, "it has reported nothing yet"
        assert upstream["sum"] == at, "a received watermark does not decrease"


@pytest.mark.contract("END-01")
def test_ended_job_is_finished_or_continued_by_force() -> None:
    blobs = begun()
    log = taken(blobs, plan()).log
    log.propose(pinned(replace(log.draft(Timestamp(4)), mode=CommitMode.DRAINED), "end"))
    assert taken(blobs, plan()).log.head.mode is CommitMode.DRAINED
    with pytest.raises(StoreError, match="has ended"):
        taken(blobs, plan(), RestoreOptions("end"))
    assert taken(blobs, plan(), RestoreOptions("end", force=True)).log.head.mode is CommitMode.RUNNING


def test_job_graph_exists_when_manifest_names_it() -> None:
    blobs = begun()
    job_graph = JobGraph("job", b"proto")
    head = taken(blobs, plan(), RestoreOptions(job_graph=job_graph)).log.head
    assert jobgraphs.read(blobs, head.job_graph) == job_graph
    assert taken(blobs, plan()).log.head.job_graph == head.job_graph


def test_transform_is_renamed_with_its_stages() -> None:
    blobs = MemoryBlobs()
    log = taken(blobs, plan("Sums/Keep", source="Feed/Read")).log
    begun = Progress(("Feed/Read",), "", {"Feed/Read": 1, "Sums/Keep": 2}).encoded()
    log.propose(log.draft(Timestamp(2), progress=begun))
    how = RestoreOptions(renamed={"Feed": "Topic", "Sums": "All/Sums"})
    changed = plan("All/Sums/Keep", source="Topic/Read")
    for _ in range(2):
        job = taken(blobs, changed, how)
        assert job.numbers == {"Topic/Read": 1, "All/Sums/Keep": 2}
        assert beginning(job, changed) == set()
    with pytest.raises(IncompatibleStateError, match="no stage 'Fee'"):
        taken(blobs, changed, RestoreOptions(renamed={"Fee": "Topics"}))
