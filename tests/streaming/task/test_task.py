"""An attempt of a task: its input, its output, their order, and its files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from arcbeam.engine.grouping.effects import DropCombined, DropHeld, DropLate
from arcbeam.engine.grouping.groupings import Combined, KeyElements
from arcbeam.engine.protocol.layout import Layout, StagePlacement
from arcbeam.engine.protocol.markers import InconsistentCutError, Marker
from arcbeam.engine.protocol.stagekinds import StageSpec
from arcbeam.engine.state.blocked import SideInputWindow
from arcbeam.engine.state.cells import BagCell, Cells
from arcbeam.engine.state.keyqueue import Late
from arcbeam.engine.task.bundles import BundleResult, CallResult, Runner
from arcbeam.engine.watermarks.clocks import Port
from arcbeam.engine.watermarks.stages import StageFlow
from arcbeam.model.interfaces import StateView
from arcbeam.model.script import AddElements
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from arcbeam.model.windows import GLOBAL_WINDOW, NO_PANE, Window
from arcbeam.store.log.commitlog import CommitLog
from arcbeam.store.manifest.names import parse_written
from arcbeam.store.shards.compaction import scan
from arcbeam.streaming.assignment import ordered
from arcbeam.streaming.interfaces import SideData
from arcbeam.streaming.task.outputs import TaskStore
from arcbeam.streaming.task.sidefiles import SideCopies, SideFileReader, SideFileWriter
from arcbeam.streaming.task.task import TaskAttempt
from arcbeam.testing.blobs import MemoryBlobs
from simulator.playing.hosts import MemoryHost
from tests.streaming.jobs import opened, plan

_MAIN = ("main",)
_A, _B = Port("a", "main"), Port("b", "main")
LAYOUT = Layout(
    (
        StagePlacement(StageFlow("a", (), _MAIN, 2), 1, 0),
        StagePlacement(StageFlow("b", (_A,), _MAIN, 2), 2, 1),
        StagePlacement(StageFlow("c", (_A,), _MAIN, 2), 3, 1),
        StagePlacement(StageFlow("d", (_A, _B), _MAIN, 2), 4, 2),
    ),
    shards=2,
    tasks=(1, 1, 1),
)
SPECS = {placed.name: StageSpec(placed) for placed in LAYOUT.stages}


class World:
    """The environment of an attempt; its calls are in `event_log`."""

    def __init__(self, log: CommitLog, scratch: Path) -> None:
        self.log, self.event_log = log, list[str]()
        self.host = MemoryHost(scratch)
        self.files = TaskStore(log.blobs, self.host, scratch)
        self.from_a = Marker(1, 0, 0, 0, b"a0", b"", {_A: MAX_TIMESTAMP})
        self.arrived: list[Marker] = [self.from_a]
        self.sides_made: list[SideData] = []
        self.closed = 0

    layout = LAYOUT

    def attempt(self, level: int = 1, name: str = "t1", **of_plan: Any) -> TaskAttempt[str]:
        head = self.log.head
        order = ordered(plan(head.micro_batch + 1, head.micro_batch, **of_plan), head, self.log.epoch)
        return TaskAttempt(self.layout, SPECS, order, level, 0, name, self.files, self, self, self, self)

    # Rows.

    def markers(self) -> Sequence[Marker]:
        return self.arrived

    def elements(self, stage: str, shard: int) -> Iterable[tuple[bytes, KeyElements | Combined]]:
        self.event_log.append(f"elements of {stage} in {shard}")
        yield b"k", [(f"{stage}{shard}".encode(), Timestamp(3), (GLOBAL_WINDOW,), NO_PANE)]

    def any(self, stage: str, shard: int) -> bool:
        return True

    def passing(self, shard: int) -> Iterable[str]:
        yield f"row for d in {shard}"

    def pass_on(self, row: str) -> None:
        self.event_log.append(f"pass on {row}")

    def mark(self, marker: Marker) -> None:
        self.event_log.append(f"mark {sorted(port.stage for port in marker.times)}")

    # User code.

    def runner(self, stage: str, shard: int, view: StateView) -> Runner:
        return Code(self, stage, shard, view)  # type: ignore[return-value]

    def beginning(self, stage: str, shard: int) -> Iterable[tuple[bytes, KeyElements]]:
        yield b"", [(b"begin", MIN_TIMESTAMP, (GLOBAL_WINDOW,), NO_PANE)]

    def scripted(self, stage: str, elements: Sequence[tuple[bytes, Timestamp]]) -> Iterable[tuple[bytes, KeyElements]]:
        yield b"", [(value, time, (GLOBAL_WINDOW,), NO_PANE) for value, time in elements]

    def late(self, stage: str, shard: int, drop: DropLate | DropHeld | DropCombined | Late) -> None:
        raise AssertionError("nothing is late")

    def sides(self) -> Iterable[SideData]:
        return self.sides_made

    def sides_to_compact(self) -> Mapping[int, bool]:
        return {7: False, 9: True}

    # Side inputs, budget.

    def needed(self, stage: str, window: Window) -> Sequence[SideInputWindow]:
        raise AssertionError("no stage has side inputs")

    def until(self, stage: str, lot: SideInputWindow) -> Timestamp:
        raise AssertionError("no stage has side inputs")

    def exists(self, stage: str, lot: SideInputWindow) -> bool:
        raise AssertionError("no stage has side inputs")

    def exhausted(self) -> bool:
        return False

    def part(self, fraction: float) -> Any:
        return self


class Code:
    """Adds each element to a bag."""

    def __init__(self, world: World, stage: str, shard: int, view: StateView) -> None:
        self.world, self.stage, self.shard = world, stage, shard
        self.bag = BagCell(Cells(view, SPECS[stage].placed.number), "all")

    def process(self, key: bytes, elements: KeyElements) -> CallResult:
        if elements[0][0] == b"fails":
            raise ZeroDivisionError
        self.world.event_log.append(f"process {elements[0][0].decode()}")
        self.bag.extend(key, b"", (value for value, _, _, _ in elements))
        return CallResult(len(elements))

    def finish(self) -> BundleResult:
        return BundleResult()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(opened(MemoryBlobs()), tmp_path)


@pytest.mark.contract("STORE-02", "ENG-02")
def test_rows_pass_by_shard_before_marker(world: World) -> None:
    world.attempt().run()
    assert world.event_log == [
        "elements of b in 0",
        "process b0",
        "elements of c in 0",
        "process c0",
        "pass on row for d in 0",
        "elements of b in 1",
        "process b1",
        "elements of c in 1",
        "process c1",
        "pass on row for d in 1",
        "mark ['a', 'b', 'c']",
    ]


def test_only_sources_begin_in_first_micro_batch(world: World) -> None:
    world.attempt(0, beginning=LAYOUT.sources).run()
    assert [line for line in world.event_log if "begin" in line] == ["process begin", "process begin"]
    world.event_log.clear()
    world.attempt(0).work()
    world.attempt(1, beginning=LAYOUT.sources).work()
    assert [line for line in world.event_log if "begin" in line] == []


@pytest.mark.contract("ENG-09")
def test_script_elements_arrive_once_at_their_stage(world: World) -> None:
    a, *others = LAYOUT.stages
    world.layout = replace(LAYOUT, stages=(replace(a, scripted=True), *others))
    world.attempt(0, beginning=LAYOUT.sources).work()
    assert [line for line in world.event_log if "begin" in line] == []
    for stage, arrived in (("a", ["process x"]), ("somebody else", [])):
        world.event_log.clear()
        world.attempt(0, event=AddElements(stage, ((b"x", Timestamp(4)),))).work()
        assert [line for line in world.event_log if line.startswith("process x")] == arrived


@pytest.mark.contract("STORE-02")
def test_report_names_files_written_after_marker(world: World) -> None:
    attempt = world.attempt()
    report = attempt.work()
    assert report.files.shards == ()
    assert not [name for name in world.log.blobs.data if name.startswith("shards")]  # type: ignore[attr-defined]
    world.sides_made = [SideData(7, 1, b"content", Timestamp(9)), SideData(7, 0, b"")]
    report = attempt.write(report)
    assert report.token == b"t1"
    assert [(of.level, of.shard) for of in report.files.shards] == [(1, 0), (1, 1)]
    for of in report.files.shards:
        (file,) = of.files
        written = parse_written(file.name)
        assert written is not None
        assert (written.micro_batch, written.epoch, written.attempt) == (1, world.log.epoch, "t1")
        assert b"".join(value for _, value in scan(world.log.blobs, of.files)).count(b"b%d" % of.shard) == 1
    (one, other) = report.files.sides
    assert (one.channel, one.shard, one.size, one.until) == (7, 1, 7, 9)
    assert (other.shard, other.size, other.until) == (0, 0, None)
    assert world.log.blobs.get(one.name) == b"content"


@pytest.mark.contract("ENG-05", "STORE-02")
def test_report_names_the_outputs_that_side_inputs_got(world: World) -> None:
    """Each by its port, once; not those that wrote nothing."""
    attempt = world.attempt()
    before = attempt.work()
    assert before.published == ()
    to = [(8, _B, 0), (7, _A, 0), (7, _A, 1), (9, None, 0)]
    world.sides_made = [SideData(channel, shard, b"x", None, port) for channel, port, shard in to]
    assert attempt.write(before).published == (_A, _B)
    # Those that the engine reports stay: their windows are complete, without any content.
    world.sides_made = [SideData(8, 0, b"x", None, _B)]
    world.arrived = [Marker(1, 0, 0, 0, b"a0", b"", {_A: MAX_TIMESTAMP})]
    attempt = world.attempt(name="t2")
    assert attempt.write(replace(attempt.work(), published=(_A,))).published == (_A, _B)


def test_unchanged_shards_are_not_reported(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    report = world.attempt().run()
    world.log.propose(world.log.draft(Timestamp(1), shards=report.files.shards))
    monkeypatch.setattr(world, "elements", lambda stage, shard: ())
    world.arrived = [Marker(2, 0, 0, 0, b"a0", b"", {_A: MAX_TIMESTAMP})]
    assert world.attempt(name="t2").run().files.shards == ()


@pytest.mark.contract("STORE-04")
def test_many_files_of_shard_are_merged(world: World) -> None:
    kinds: list[list[str]] = []
    for micro_batch in range(1, 7):
        world.arrived = [Marker(micro_batch, 0, 0, 0, b"a0", b"", {_A: MAX_TIMESTAMP})]
        report = world.attempt(name=f"t{micro_batch}").run()
        world.log.propose(world.log.draft(Timestamp(micro_batch), shards=report.files.shards))
        kinds.append([str(file.kind) for file in world.log.head.shards[0].files])
    assert kinds[3] == ["delta"] * 4
    assert kinds[4] == ["snapshot", "delta"]
    written = parse_written(world.log.head.shards[0].files[0].name)
    assert written is not None
    assert written.attempt == "t5.merged"
    bag = [value for _, value in scan(world.log.blobs, world.log.head.shards[0].files)]
    assert b"".join(bag).count(b"b0") == 6


@pytest.mark.contract("STORE-04", "ENG-05")
def test_responsible_task_merges_side_input_files(world: World) -> None:
    for micro_batch in range(1, 6):
        world.arrived = [Marker(micro_batch, 0, 0, 0, b"a0", b"", {_A: MAX_TIMESTAMP})]
        writers, made = [], []
        for channel in (7, 8):
            writer = SideFileWriter(world.files.scratch, channel, _A)
            writer.append(b"w", b"%d" % micro_batch)
            writers.append(writer)
            made.append(writer.data(0, None))
        world.sides_made = [data for data in made if data is not None]
        before, report = world.log.head.side_files, world.attempt(name=f"t{micro_batch}").run()
        sides = (*before, *report.files.sides)
        kept = tuple(file for file in sides if file.name not in report.files.joined)
        world.log.propose(world.log.draft(Timestamp(micro_batch), side_files=kept))
        assert set(report.files.joined) == ({f.name for f in before if f.channel == 7} if micro_batch == 5 else set())
    head = world.log.head.side_files
    assert [(file.channel, file.micro_batch) for file in head] == [
        *((8, n) for n in range(1, 5)),
        (7, 5),
        (8, 5),
        (7, 4),
    ]
    reader = SideFileReader(world.log.blobs, world.files.scratch, head, {3: (7,)}, SideCopies())
    assert b"".join(reader.chunks(3, b"w")) == b"12345"


class Counting(MemoryHost):
    """Counts open views."""

    open = 0

    def view(self, *args: Any) -> Any:
        view = super().view(*args)
        self.open += 1
        close = view.close

        def closed() -> None:
            self.open -= 1
            close()

        view.close = closed  # type: ignore[method-assign]
        return view


@pytest.mark.parametrize("fails", [False, True])
def test_copies_are_released_also_after_failure(world: World, tmp_path: Path, fails: bool) -> None:
    host = Counting(tmp_path)
    world.files = TaskStore(world.log.blobs, host, tmp_path)
    if fails:
        world.beginning = lambda stage, shard: [(b"", [(b"fails", MIN_TIMESTAMP, (GLOBAL_WINDOW,), NO_PANE)])]  # type: ignore
        with pytest.raises(ZeroDivisionError):
            world.attempt(0, beginning=LAYOUT.sources).run()
    else:
        attempt = world.attempt()
        report = attempt.work()
        assert host.open == 2
        attempt.write(report)
        attempt.close()
    assert host.open == 0


@pytest.mark.contract("STORE-02")
def test_task_without_all_markers_writes_nothing(world: World) -> None:
    world.arrived = []
    with pytest.raises(InconsistentCutError):
        world.attempt().run()
    assert world.event_log == []
