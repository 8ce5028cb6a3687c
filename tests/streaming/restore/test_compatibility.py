"""A changed pipeline has other side inputs: blocked elements and contents are neither lost nor duplicated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from arcbeam.engine.state.statemetrics import StateMetrics
from arcbeam.engine.watermarks.clocks import Port
from arcbeam.model.files import FileKind, Shard, ShardFile, SideFile
from arcbeam.model.plan import Channel, Plan, Routing, SideInput, Stage
from arcbeam.model.timestamps import MAX_TIMESTAMP, Timestamp
from arcbeam.store.blobs.errors import IncompatibleStateError
from arcbeam.store.log.chain import read_newest
from arcbeam.store.manifest.names import Written, written_name
from arcbeam.store.manifest.values import Manifest, OutputWatermark, StageWatermarks
from arcbeam.streaming.driverstate import Progress, progress_of
from arcbeam.streaming.physicalplan import side_number
from arcbeam.streaming.restore.compatibility import refuse_renamed_writers
from arcbeam.streaming.restore.restore import RestoreOptions, Taken, restore
from arcbeam.streaming.status.snapshot import Since, Snapshot, StageSnapshot
from arcbeam.testing.blobs import MemoryBlobs

pytestmark = pytest.mark.contract("STORE-05", "ENG-05")

AT = Timestamp(40)
PLAIN = "coder; windows"


def plan(*tables: str, reads: str | None = PLAIN, also_read: Sequence[str] = ()) -> Plan:
    """A stream, and a stage that reads it with tables as its side inputs; None: no stage reads it."""
    makers = tuple(Stage(f"m{n}", name, (), b"", None, (n + 1,), uid=f"{name}/make") for n, name in enumerate(tables))
    sides = tuple(SideInput("look", f"side{n}", n + 1) for n in range(len(tables)))
    reader = Stage("look", "look", (), b"", 0, (), uid="look", shape=reads or "", side_inputs=sides)
    consumers = ("look",) if reads is not None else ()
    return Plan(
        "job",
        (Stage("s", "read", (), b"", None, (0,), uid="read"), *makers, *([reader] if reads is not None else [])),
        (
            Channel(0, "rows", Routing.KEYED, "", "", ("s",), consumers),
            *(Channel(n + 1, name, Routing.SIDE, "", "", (f"m{n}",), consumers) for n, name in enumerate(tables)),
        ),
        bounded=False,
    )


def taken(blobs: MemoryBlobs, plan: Plan, how: RestoreOptions = RestoreOptions()) -> Taken:
    return restore(plan, blobs, how, shards=2, now=Timestamp(1), driver="here")


def port(table: str) -> Port:
    return Port(f"{table}/make", f"{table} ({Routing.SIDE})")


def begun(*tables: str, reads: str = PLAIN, blocked: int = 0, live: int = 0) -> MemoryBlobs:
    """A job that has read its tables completely."""
    blobs = MemoryBlobs()
    log = taken(blobs, plan(*tables, reads=reads)).log

    def name(kind: str, place: int) -> str:
        return written_name(Written(place, 0, 1, log.epoch, "a", kind))

    marks = [StageWatermarks("read", MAX_TIMESTAMP, AT, (OutputWatermark("rows", AT),))]
    for table in tables:
        ended = OutputWatermark(port(table).output, MAX_TIMESTAMP)
        marks.append(StageWatermarks(port(table).stage, MAX_TIMESTAMP, MAX_TIMESTAMP, (ended,)))
    marks.append(StageWatermarks("look", AT, AT, ()))
    stands = StageSnapshot(
        "look", (Port("read", "rows"),), 2, Since(1, AT), {}, live=live, kept=StateMetrics(blocked=blocked)
    )
    numbers = {uid: number for number, uid in enumerate(("read", *(f"{table}/make" for table in tables), "look"), 1)}
    log.propose(
        log.draft(
            Timestamp(2),
            watermarks=tuple(marks),
            shards=(Shard(1, 0, (ShardFile(name("delta", 1), FileKind.DELTA, 9, 0, 1, 0, b"a", b"a", 1, 1),)),),
            side_files=tuple(
                SideFile(side_number(port(table)), 0, name("side", side_number(port(table))), 9, 1, None)
                for table in tables
            ),
            progress=Progress(("read", *(f"{table}/make" for table in tables)), "", numbers).encoded(),
            snapshot=Snapshot((stands,)).encoded(),
        )
    )
    return blobs


def there(head: Manifest) -> set[int]:
    return {file.channel for file in head.side_files}


def test_side_inputs_may_change_if_nothing_waits() -> None:
    blobs = begun("rates")
    assert there(taken(blobs, plan("rates")).log.head) == {side_number(port("rates"))}
    head = taken(blobs, plan("rates", "names")).log.head
    assert there(head) == {side_number(port("rates"))}, "the new one has not been written yet"
    assert there(taken(blobs, plan(reads=PLAIN)).log.head) == set()
    # It returns as a source that begins again, so its earlier files are gone.
    assert there(taken(blobs, plan("rates"), RestoreOptions(drop=True)).log.head) == set()


def test_stage_without_other_state_may_be_removed() -> None:
    job = taken(begun("rates"), plan(reads=None))
    assert "look" not in progress_of(job.log.head).numbers
    assert 3 in progress_of(job.log.head).numbers.values()


def test_stateful_stage_keeps_state_with_other_side_inputs() -> None:
    stateful = f"{PLAIN}; state seen: combining<varint>"
    head = taken(begun("rates", reads=stateful), plan("rates", "names", reads=stateful)).log.head
    assert progress_of(head).numbers["look"] == 3
    with pytest.raises(
        IncompatibleStateError, match="stage 'look' has state, but the pipeline has no stage of that name"
    ):
        taken(begun("rates", reads=stateful), plan(reads=None))


@pytest.mark.parametrize(
    ("blobs", "wanted", "why"),
    [
        (
            begun("rates", blocked=7),
            plan("rates", "names"),
            r"'look' has other side inputs now, but 7 element\(s\) wait",
        ),
        (begun("rates", blocked=7), plan(reads=""), r"'look' has other side inputs now, but 7 element\(s\) wait"),
        (
            begun("rates", live=2),
            plan("rates", "names"),
            r"'look' has more side inputs now, but 2 of its restriction\(s\)",
        ),
    ],
    ids=["another", "none", "restrictions"],
)
def test_changed_side_inputs_of_waiting_work_are_refused(blobs: MemoryBlobs, wanted: Plan, why: str) -> None:
    before = dict(blobs.data)
    with pytest.raises(IncompatibleStateError, match=rf"{why}(?s:.)*until nothing waits"):
        taken(blobs, wanted)
    assert blobs.data == before


def test_unfinished_restrictions_may_lose_side_inputs() -> None:
    assert there(taken(begun("rates", "names", live=2), plan("rates")).log.head) == {side_number(port("rates"))}


def test_side_input_from_ended_output_is_refused() -> None:
    blobs = begun("rates")
    changed = plan("rates")
    renamed = replace(changed, channels=(changed.channels[0], replace(changed.channels[1], name="by key")))
    with pytest.raises(IncompatibleStateError, match=r"'rates/make' has ended.* 'by key .*' is a side input"):
        taken(blobs, renamed)


def test_writer_of_side_input_cannot_be_renamed() -> None:
    blobs = begun("rates")
    with pytest.raises(
        IncompatibleStateError, match=r"with the source\(s\) 'rates/make', .* and without 'prices/make'"
    ):
        taken(blobs, plan("prices"))
    for mapping in {"rates": "prices"}, {"rates/make": "prices/make"}:
        with pytest.raises(IncompatibleStateError, match="'rates/make' has written a side input"):
            taken(blobs, plan("prices"), RestoreOptions(renamed=mapping))
    assert there(taken(blobs, plan("prices"), RestoreOptions(drop=True)).log.head) == set()


@pytest.mark.parametrize("name", ["rat", "rates/mak", "rates/make2", "ates", "rates/make/more"])
def test_other_stages_than_writers_may_be_renamed(name: str) -> None:
    blobs = begun("rates")
    head = read_newest(blobs)
    assert isinstance(head, Manifest)
    refuse_renamed_writers(head, {name: "another", "rates": "rates"}, blobs)
    with pytest.raises(IncompatibleStateError, match="'rates/make' has written a side input"):
        refuse_renamed_writers(head, {name: "another", "rates": "another"}, blobs)


def test_job_without_state_accepts_any_shape() -> None:
    blobs = MemoryBlobs()
    taken(blobs, plan("rates", reads="one kind; windows"))
    assert taken(blobs, plan("rates", reads="another; windows")).log.head.shape.stages[-1].shape.startswith("another")
