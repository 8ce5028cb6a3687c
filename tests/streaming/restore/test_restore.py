"""Taking a job over: what fits goes on, also under other names; what does not is refused before anything is written."""

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
from tests.golden import check_message

pytestmark = pytest.mark.contract("STORE-05")


def plan(sum: str = "sum", shape: str = "cells", source: str = "read") -> Plan:
    """A source, and a stage that keeps something; both publish."""
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


def test_the_number_of_shards_is_the_jobs_whatever_there_is_today() -> None:
    blobs = begun()
    assert taken(blobs, plan(), shards=9).shards == 4
    with pytest.raises(IncompatibleStateError) as refused:
        taken(blobs, plan(), RestoreOptions(shards=9))
    check_message("other-shards", str(refused.value))


def test_a_stage_under_another_name_keeps_its_state_number_and_watermarks() -> None:
    blobs = begun()
    with pytest.raises(IncompatibleStateError, match="stage 'sum' has state, and the pipeline has no such stage"):
        taken(blobs, plan("total"))
    how = RestoreOptions(renamed={"sum": "total"})
    for _ in range(2):  # who is started again with the same is not refused
        job = taken(blobs, plan("total"), how)
        assert job.numbers == {"read": 1, "total": 2}
        assert progress_of(job.log.head).numbers == {"read": 1, "total": 2}, "also if no micro-batch follows"
        assert [of.stage for of in job.log.head.watermarks] == ["total"]
    assert taken(blobs, plan("total")).numbers["total"] == 2
    with pytest.raises(IncompatibleStateError, match="stage 'last' has state of another kind"):
        taken(blobs, plan("last", "others"), RestoreOptions(renamed={"total": "last"}))


def test_state_without_a_stage_is_given_up_when_that_is_allowed_and_for_good() -> None:
    blobs = begun()
    with pytest.raises(IncompatibleStateError, match=r"- stage 'sum' has state, .*(?s:.)*with --allow_dropped_state"):
        taken(blobs, plan("total"))
    drop = RestoreOptions(drop=True)
    job = taken(blobs, plan("total"), drop)
    assert job.dropped == ("stage 'sum' has state, and the pipeline has no such stage",)
    assert [of.stage for of in job.log.head.shape.stages] == ["read", "total"]
    assert job.numbers == {"read": 1, "total": 3}, "its rows are still there: nobody gets its number"
    # It comes back, and does not find what it had.
    back = taken(blobs, plan(), drop)
    assert back.dropped == ("stage 'total' has state, and the pipeline has no such stage",)
    assert back.numbers["sum"] not in (1, 2)
    assert taken(blobs, plan(), drop).dropped == (), "who is started again with it gives up no more"
    with pytest.raises(IncompatibleStateError, match="stage 'sum' has state of another kind"):
        taken(blobs, plan(shape="others"), drop)
    # The savepoint has it all.
    assert taken(blobs, plan(), RestoreOptions("safe")).numbers["sum"] == 2


@pytest.mark.contract("END-01", "END-06")
@pytest.mark.parametrize("mode", [CommitMode.RUNNING, CommitMode.SUSPENDED])
def test_what_nobody_can_publish_any_more_is_refused_by_name_or_given_up_by_name(mode: CommitMode) -> None:
    blobs = begun()
    log = taken(blobs, plan()).log
    parts = tuple(Committable(f"{who}/publish", data) for who, data in (("sum", b"a"), ("sum", b"b"), ("read", b"c")))
    log.propose(replace(log.draft(Timestamp(4)), mode=mode, committables=parts))
    before = dict(blobs.data)
    with pytest.raises(IncompatibleStateError) as refused:
        taken(blobs, plan("total"))
    assert refused.value.message.splitlines()[1:] == [
        "  - stage 'sum' has state, and the pipeline has no such stage",
        "  - 'sum/publish' has 2 committable(s) that may not be published, and the pipeline has no such publisher",
    ]
    assert blobs.data == before
    assert taken(blobs, plan()).log.head.committables == parts
    how = RestoreOptions(renamed={"sum": "total", "sum/publish": "total/publish"})
    renamed = taken(blobs, plan("total"), how).log.head.committables
    publishers = ["total/publish", "total/publish", "read/publish"]
    assert [of.stage for of in renamed] == publishers, "under another name it is published"
    assert taken(blobs, plan("total"), how).log.head.committables == renamed
    job = taken(blobs, plan("last"), RestoreOptions(drop=True))
    assert job.log.head.committables == parts[2:]
    assert [line.partition(" and ")[0] for line in job.dropped] == [
        "stage 'total' has state,",
        "'total/publish' has 2 committable(s) that may not be published,",
    ]


def test_a_savepoint_from_before_is_gone_on_with_under_the_new_name() -> None:
    blobs = begun()
    taken(blobs, plan("total"), RestoreOptions(renamed={"sum": "total"}))
    job = taken(blobs, plan("total"), RestoreOptions("safe", renamed={"sum": "total"}))
    assert job.numbers["total"] == 2
    assert job.log.head.abandoned


@pytest.mark.parametrize(
    ("names", "why"),
    [
        ({"sun": "total"}, r"no stage 'sun' to be called otherwise\n.*the job has 'read', 'sum'"),
        ({"sum": "read"}, "more than one stage would be called 'read'"),
        ({"sum": "x", "read": "x"}, "more than one stage would be called 'x'"),
    ],
)
def test_names_that_make_no_sense_are_refused(names: dict[str, str], why: str) -> None:
    with pytest.raises(IncompatibleStateError, match=why):
        renamed(taken(begun(), plan()).log.head, names)


@pytest.mark.parametrize("names", [{"sum": "read", "read": "sum"}, {"sum": "read", "read": "more"}])
def test_a_name_that_is_given_up_is_free_only_behind_the_next_opening(names: dict[str, str]) -> None:
    head = taken(begun(), plan()).log.head
    with pytest.raises(IncompatibleStateError, match="would get the name of a stage that gets"):
        renamed(head, names)


def test_a_mapping_that_was_applied_changes_nothing() -> None:
    head = renamed(taken(begun(), plan()).log.head, {"sum": "total"})
    assert renamed(head, {"sum": "total"}) == head


def beginning(job: Taken, plan: Plan) -> frozenset[str]:
    """The sources that begin in the next micro-batch."""
    layout = placed(plan, job.numbers, job.shards, 1).layout
    return started(job.log.head, layout, Timestamp(9)).unbegun


def test_a_source_in_the_place_of_another_is_refused_for_it_may_be_the_same_and_nothing_is_written() -> None:
    blobs = begun()
    before = dict(blobs.data)
    with pytest.raises(IncompatibleStateError, match=r"with the source\(s\) 'read', which .* does not have.* 'more'"):
        taken(blobs, plan(source="more"))
    assert blobs.data == before
    renamed = taken(blobs, plan(source="more"), RestoreOptions(renamed={"read": "more"}))
    assert beginning(renamed, plan(source="more")) == set(), "it is not read again"
    other = taken(blobs, plan(source="another"), RestoreOptions(drop=True))
    assert beginning(other, plan(source="another")) == {"another"}
    # A driver that dies before its first micro-batch leaves it to the next.
    again = taken(blobs, plan(source="another"), RestoreOptions(drop=True))
    assert beginning(again, plan(source="another")) == {"another"}


def test_sources_are_held_against_what_is_gone_on_from_not_against_the_head() -> None:
    blobs = MemoryBlobs()
    log = taken(blobs, plan()).log
    log.propose(pinned(log.draft(Timestamp(2)), "fresh"))  # its sources have not begun
    head = progress_of(log.head)
    begun = Progress(("read",), head.drains_to, {"read": 1, "sum": 2}, head.script)
    log.propose(log.draft(Timestamp(3), progress=begun.encoded()))
    with pytest.raises(IncompatibleStateError, match="and without 'more'"):
        taken(blobs, plan(source="more"))
    assert taken(blobs, plan(source="more"), RestoreOptions("fresh")).log.head.abandoned


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
def test_a_source_more_begins_and_takes_back_nothing_that_was_said(at: Timestamp) -> None:
    blobs = MemoryBlobs()
    log = taken(blobs, joined("read")).log
    outputs = (OutputWatermark("rows", at), OutputWatermark("rows#2", at))
    marks = (StageWatermarks("read", MAX_TIMESTAMP, at, outputs), StageWatermarks("sum", at, at, ()))
    known = Progress(("read",), "", {"read": 1, "sum": 2, "beside": 3}).encoded()
    log.propose(pinned(log.draft(Timestamp(2), watermarks=marks, progress=known), "safe"))
    more = joined("read", "more")
    if at == MAX_TIMESTAMP:
        before = dict(blobs.data)
        with pytest.raises(IncompatibleStateError, match=r"the input of 'sum' has ended, .* 'more', too: .* too late"):
            taken(blobs, more)
        assert blobs.data == before
        return
    job = taken(blobs, more)
    assert beginning(job, more) == {"more"}
    times = times_of(job.log.head)
    layout = placed(more, job.numbers, job.shards, 1).layout
    marks_of = Watermarks(layout.flows, times)
    assert (marks_of.upstream("sum"), times.inputs["sum"]) == (at, at), "what comes earlier is late"
    assert marks_of.upstream("beside") < at, "who was not there has been told nothing"


def test_a_folder_that_is_called_like_a_savepoint_is_told_where_there_is_no_job() -> None:
    with pytest.raises(StoreError, match=r"no savepoint 'x'.*\n.*savepoints/x is read as .* savepoint: .* call that"):
        taken(MemoryBlobs(), plan(), RestoreOptions("x"))


def test_who_is_refused_leaves_no_program_behind() -> None:
    blobs = begun()
    before = dict(blobs.data)
    with pytest.raises(IncompatibleStateError):
        taken(blobs, plan("total"), RestoreOptions(program=JobGraph("job", b"proto")))
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


def test_an_output_that_a_stage_did_not_have_begins_where_its_others_were() -> None:
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
        # What was told is not taken back: who reads another output now has what is earlier there as late.
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
def test_a_new_stage_is_at_the_end_of_time_where_all_that_it_reads_is(at: Timestamp) -> None:
    """Who reads it may be there, and cannot go back: not to the hold of one that is to prepare to shut down either."""
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
    assert taken(blobs, between("new", "next")).idle == (), "it is told once"
    upstream = {of.stage: of.upstream for of in head.watermarks}
    outputs = {port.stage: time for port, time in times_of(head).outputs.items()}
    if at == MAX_TIMESTAMP:
        assert outputs == {"read": at, "new": at, "next": at}
        assert upstream == dict.fromkeys(("read", "new", "next", "sum"), at)
    else:
        assert outputs == {"read": at}, "it has said nothing yet"
        assert upstream["sum"] == at, "what was told is not taken back"


@pytest.mark.contract("END-01")
def test_a_job_that_has_ended_is_opened_to_be_finished_and_by_force_to_go_on() -> None:
    blobs = begun()
    log = taken(blobs, plan()).log
    log.propose(pinned(replace(log.draft(Timestamp(4)), mode=CommitMode.DRAINED), "end"))
    assert taken(blobs, plan()).log.head.mode is CommitMode.DRAINED
    with pytest.raises(StoreError, match="has ended"):
        taken(blobs, plan(), RestoreOptions("end"))
    assert taken(blobs, plan(), RestoreOptions("end", force=True)).log.head.mode is CommitMode.RUNNING


def test_the_program_is_there_when_a_manifest_names_it() -> None:
    blobs = begun()
    program = JobGraph("job", b"proto")
    head = taken(blobs, plan(), RestoreOptions(program=program)).log.head
    assert jobgraphs.read(blobs, head.program) == program
    assert taken(blobs, plan()).log.head.program == head.program


def test_a_transform_around_stages_is_renamed_with_all_that_are_in_it() -> None:
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
    with pytest.raises(IncompatibleStateError, match="no stage 'Fee' to be called otherwise"):
        taken(blobs, changed, RestoreOptions(renamed={"Fee": "Topics"}))
