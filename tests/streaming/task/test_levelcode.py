"""A level's user code with stages of no SDK: a worker of another SDK only has to implement `TaskStage`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from arcbeam.engine.grouping.effects import DropCombined, DropHeld, DropLate, DropReason
from arcbeam.engine.grouping.groupings import Combined, KeyElements
from arcbeam.engine.protocol.layout import StagePlacement
from arcbeam.engine.protocol.markers import Marker
from arcbeam.engine.protocol.microbatchplan import MicroBatchBudget, MicroBatchPlan
from arcbeam.engine.protocol.reports import TaskReport
from arcbeam.engine.protocol.stagekinds import StageSpec
from arcbeam.engine.state.cells import BagCell, Cells
from arcbeam.engine.state.keyqueue import Late
from arcbeam.engine.task.bundles import NOTHING, BundleResult, CallResult
from arcbeam.engine.task.taskstage import Finalizations, StageRunner, TaskStage
from arcbeam.engine.watermarks.stages import WatermarkTimes
from arcbeam.model.interfaces import StateView
from arcbeam.model.plan import Channel, Plan, Routing, SideInput, Stage
from arcbeam.model.rows import BundleReport, Outbox, PublishedSides, Row, SideWriter, key_hash
from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, MIN_TIMESTAMP, Duration, Timestamp
from arcbeam.model.windows import GLOBAL_WINDOW, NO_PANE, Window
from arcbeam.store.log.commitlog import CommitLog
from arcbeam.streaming.assignment import ordered
from arcbeam.streaming.physicalplan import placed, shape_of
from arcbeam.streaming.task.levelcode import LevelCode
from arcbeam.streaming.task.outputs import TaskStore
from arcbeam.streaming.task.sidefiles import SideCopies, SideFileReader
from arcbeam.streaming.task.task import TaskAttempt
from arcbeam.streaming.task.taskbudget import TaskBudget
from arcbeam.testing.blobs import MemoryBlobs
from arcbeam.testing.views import MemoryView
from simulator.playing.hosts import MemoryHost

SHARDS = 2
WORDS, KNOWN, PRICES, SUMS = range(4)
PLAN = Plan(
    "job",
    (
        Stage("s0", "words", (), b"tea pie tea", None, (WORDS, KNOWN, PRICES), uid="the words"),
        Stage(
            "s1",
            "sums",
            (),
            b"",
            WORDS,
            (SUMS,),
            (SideInput("t", "known", KNOWN, eager=True), SideInput("t", "prices", PRICES, eager=True)),
            uid="the sums",
        ),
        Stage("s2", "end", (), b"", SUMS, (), finalizes=True, uid="the end"),
    ),
    (
        Channel(WORDS, "words", Routing.KEYED, producers=("s0",), consumers=("s1",)),
        Channel(KNOWN, "known", Routing.SIDE, producers=("s0",)),
        Channel(PRICES, "prices", Routing.SIDE_KEYED, producers=("s0",)),
        Channel(SUMS, "sums", Routing.SPREAD, producers=("s1",), consumers=("s2",)),
    ),
    bounded=False,
)
PLACING = placed(PLAN, {stage.uid: number for number, stage in enumerate(PLAN.stages, 1)}, SHARDS, 1)
_ENCODED = b"the window"
"""The global window, as this worker encodes it."""


@dataclass
class Out:
    """An output of a stage."""

    taken: int = 0


class Calls(Finalizations):
    """Finalizations of a task."""

    def __init__(self, event_log: list[str]) -> None:
        self._event_log = event_log

    def run(self) -> None:
        self._event_log.append("finalized")


class TextStage(TaskStage):
    """A stage on text: all that a worker of another SDK must implement."""

    id = ""
    writers: Sequence[Out] = ()

    def __init__(self, stage: Stage) -> None:
        self.stage, self.id = stage, stage.id
        self.writers = [Out()]
        self.event_log: list[str] = []
        self.sides: PublishedSides | None = None

    def spec(self, placed: StagePlacement) -> StageSpec:
        return StageSpec(placed, decode=lambda window: GLOBAL_WINDOW)

    def begin(
        self,
        outbox: Outbox,
        task: int,
        side_writer: Callable[[int], SideWriter],
        sides: PublishedSides,
        now: Timestamp | None,
    ) -> None:
        self.outbox, self.side_writer, self.sides = outbox, side_writer, sides
        self.event_log.append(f"begins task {task}")

    def elements(self, rows: Iterable[Row]) -> Iterable[tuple[bytes, KeyElements | Combined]]:
        for row in rows:
            yield b"", [(row.blob, MIN_TIMESTAMP, (GLOBAL_WINDOW,), NO_PANE)]

    def scripted(self, elements: Sequence[tuple[bytes, Timestamp]]) -> Iterable[tuple[bytes, KeyElements]]:
        raise AssertionError("there is no script")

    def runner(self, view: StateView, placed: StagePlacement) -> StageRunner:
        kind: Any = Words if self.stage.uid == "the words" else Sums
        runner: StageRunner = kind(self, view, placed)
        return runner

    def entries(self, row: Row) -> Iterator[tuple[bytes, bytes, bytes]]:
        word, price = row.blob.split(b"=")
        yield _ENCODED, word, price

    def last_moment(self, channel: int, window: bytes) -> Timestamp:
        assert window == _ENCODED
        return END_OF_GLOBAL_WINDOW

    def sides_needed(self, window: Window) -> Sequence[tuple[int, bytes]]:
        return [(side.channel, window.ordered()) for side in self.stage.side_inputs]

    def side_until(self, channel: int, window: bytes) -> Timestamp:
        return END_OF_GLOBAL_WINDOW

    def side_exists(self, channel: int, window: bytes) -> bool:
        assert self.sides is not None
        has = self.sides.has_keys if channel == PRICES else self.sides.has_chunks
        return has(channel, _ENCODED)

    def end(self, report: BundleReport, *, late: int, closed: int) -> None:
        report.metrics = [b"late %d, closed %d" % (late, closed)]

    def callbacks(self) -> Calls | None:
        return Calls(self.event_log) if self.stage.finalizes else None

    def needs_teardown(self) -> bool:
        return False

    def running_step(self, frame: FrameType | None = None) -> str:
        return self.stage.name

    def abandon(self) -> None:
        self.event_log.append("abandoned")

    def shut_down(self) -> list[str]:
        return []

    def close(self) -> list[str]:
        return []


class TextRunner:
    """A stage's user code in a shard."""

    def __init__(self, stage: TextStage, view: StateView, placed: StagePlacement) -> None:
        self.stage = stage
        self.bag = BagCell(Cells(view, placed.number), "arrived")

    def put(self, channel: int, word: bytes, blob: bytes) -> None:
        self.stage.writers[0].taken += 1
        self.stage.outbox.put(Row(channel, key_hash(word) % SHARDS, 0, blob))

    def late(self, drop: DropLate | DropHeld | DropCombined | Late) -> None:
        self.stage.event_log.append("late")

    def about(self) -> str:
        return "a word"

    def finish(self) -> BundleResult:
        return BundleResult()


class Words(TextRunner):
    """Put out the words, also into two side inputs."""

    def process(self, key: bytes, elements: KeyElements) -> CallResult:
        known = self.stage.side_writer(KNOWN)
        for number, word in enumerate(self.stage.stage.payload.split()):
            self.put(WORDS, word, word)
            known.append(_ENCODED, word)
            self.put(PRICES, word, b"%s=%d" % (word, number))
        known.close()
        return NOTHING


class Sums(TextRunner):
    """Keep a word, and put out its stored values with the prices in the side input."""

    def process(self, key: bytes, elements: KeyElements) -> CallResult:
        sides = self.stage.sides
        assert sides is not None
        assert b"".join(sides.chunks(KNOWN, _ENCODED)) == b"teapietea"
        for word, _, _, _ in elements:
            self.bag.extend(word, b"", [b"x"])
            prices = b"+".join(sides.values(PRICES, _ENCODED, word))
            self.put(SUMS, word, b"%s: %s" % (word, prices))
        return NOTHING


@dataclass
class Exchange:
    """The rows to and from a level; see `TaskExchange`."""

    code: LevelCode | None = None
    rows: list[Row] = field(default_factory=list)
    arrived: list[Marker] = field(default_factory=list)
    sent: list[Row] = field(default_factory=list)
    marked: list[Marker] = field(default_factory=list)
    reports: list[BundleReport] = field(default_factory=list)

    def put(self, row: Row) -> None:
        self.sent.append(row)

    def markers(self) -> Sequence[Marker]:
        return self.arrived

    def elements(self, stage: str, shard: int) -> Iterable[tuple[bytes, KeyElements | Combined]]:
        assert self.code is not None
        return self.code.elements(stage, [row for row in self.rows if row.shard == shard])

    def any(self, stage: str, shard: int) -> bool:
        return any(row.shard == shard for row in self.rows)

    def passing(self, shard: int) -> Iterable[Row]:
        return ()

    def pass_on(self, row: Row) -> None:
        raise AssertionError("no row passes a level")

    def mark(self, marker: Marker) -> None:
        assert self.code is not None
        self.reports = self.code.end()
        self.marked.append(marker)


@dataclass
class World:
    """A job whose worker has the stages open."""

    log: CommitLog
    scratch: Path
    stages: dict[str, TextStage] = field(default_factory=lambda: {stage.uid: TextStage(stage) for stage in PLAN.stages})

    def opened(self, uid: str) -> TaskStage:
        return self.stages[uid]

    def code(self, level: int, exchange: Exchange) -> LevelCode:
        files, copies = self.log.head.side_files, SideCopies()
        sides = SideFileReader(self.log.blobs, self.scratch, files, PLACING.side_parts, copies)
        exchange.code = LevelCode(PLACING, level, 0, self.opened, exchange, sides, self.scratch, Timestamp(5))
        return exchange.code

    def run(self, level: int, exchange: Exchange) -> TaskReport:
        """Run a level of the micro-batch after the head."""
        code, head = self.code(level, exchange), self.log.head
        number, budget = head.micro_batch + 1, MicroBatchBudget(Duration(1), 1_000, 1_000)
        begins = PLACING.layout.sources if number == 1 else frozenset()
        plan = MicroBatchPlan(number, 0, Timestamp(5), head.micro_batch, WatermarkTimes(), budget, begins)
        order = ordered(plan, head, self.log.epoch)
        files = TaskStore(self.log.blobs, MemoryHost(self.scratch), self.scratch)
        budget_left = TaskBudget(budget, lambda: 0, code.written)
        name = f"t{number}.{level}"
        return TaskAttempt(
            PLACING.layout, code.specs(), order, level, 0, name, files, exchange, code, code, budget_left
        ).run()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(CommitLog.open(MemoryBlobs(), shape_of(PLAN, SHARDS), Timestamp(0)), tmp_path)


@pytest.mark.contract("ENG-05", "STORE-02")
def test_stage_without_an_sdk_runs_with_state_and_side_inputs(world: World) -> None:
    first, second = Exchange(), Exchange()
    of_words = world.run(0, first)
    assert [row.blob for row in first.sent] == [b"tea", b"pie", b"tea"], "entries of the multimap are no rows"
    assert first.code is not None
    assert first.code.written() == 6
    second.rows, second.arrived = first.sent, first.marked
    of_sums = world.run(1, second)
    assert second.sent == [], "the side inputs are not committed yet"
    assert [report.stage for report in first.reports + second.reports] == ["the words", "the sums"]

    shards = (*of_words.files.shards, *of_sums.files.shards)
    world.log.propose(world.log.draft(Timestamp(1), shards=shards, side_files=of_words.files.sides))
    none, third = Exchange(), Exchange()
    world.run(0, none)
    third.arrived = none.marked
    world.run(1, third)
    assert none.sent == []
    assert sorted(row.blob for row in third.sent) == [b"pie: 1", b"tea: 0+2", b"tea: 0+2"]
    assert world.stages["the sums"].event_log == ["begins task 0"] * 2


def test_dropped_elements_are_counted_by_reason(world: World) -> None:
    code = world.code(1, exchange := Exchange())
    assert code.stage is None
    code.runner("the sums", 0, MemoryView())
    for reason in (DropReason.EXPIRED, DropReason.EXPIRED, DropReason.CLOSED):
        code.late("the sums", 0, DropLate(b"k", GLOBAL_WINDOW, b"v", Timestamp(0), Timestamp(0), reason))
    assert exchange.code is code
    (report,) = code.end()
    assert report.metrics == [b"late 2, closed 1"]
    assert world.stages["the sums"].event_log == ["begins task 0", "late", "late", "late"]
    assert code.about() == "a word"
    assert code.stage is not None
    assert code.stage.running_step() == "sums"


def test_finalizations_are_released_at_end_of_task(world: World) -> None:
    code = world.code(2, Exchange())
    code.specs()
    code.end()
    (calls,) = code.callbacks()
    calls.run()
    assert world.stages["the end"].event_log == ["begins task 0", "finalized"]
