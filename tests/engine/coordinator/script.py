"""A language for tests of a job's machine: lines of `event -> expected commands`.

Events: `start [fresh] [draining] [unpublished]`, `start with NEW SOURCES`, `clock N`, `reports WHAT`, `fails`, `dies`,
`breaks`, `committed`, `conflict`, `overtaken`, `unknown`, `refused`, `driver fails`, `published`, `publish fails`,
`publisher dies`, `finalized`, `shut down`, `torn down`, `drain NAME`, `suspend [NAME]`, `savepoint NAME`, `cancel`.
`late MICRO_BATCH.RUN` is the report of an abandoned run. WHAT is in `REPORTS`, or `due N`: all work left is due then.

`says WHAT` is the next event of a job's script: `elements`, `watermark N`, `clock N`, `end`.

Commands: `run MICRO_BATCH.RUN`, `propose MICRO_BATCH MODE` (`bare` without a micro-batch), `wait N` (or `wait`), and so
on; `-` for none. After each line the machine is validated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from arcbeam.engine.coordinator import (
    Abandon,
    CallShutdown,
    CancelRequested,
    ClockAdvanced,
    Command,
    CommitConflicted,
    CommitDecided,
    CommitRefused,
    CommitUnknown,
    CoordinatorSettings,
    DrainRequested,
    DriverFailed,
    End,
    Event,
    Finalize,
    Finalized,
    JobMachine,
    JobStarted,
    MicroBatchBudget,
    MicroBatchFailed,
    MicroBatchPlan,
    MicroBatchReported,
    Overtaken,
    Pace,
    Patience,
    Propose,
    PublishCommittables,
    Published,
    PublishFailed,
    ReadScript,
    Resolve,
    Retry,
    RunMicroBatch,
    SavepointRequested,
    ScriptRead,
    ShutDown,
    SuspendRequested,
    TearDown,
    TornDown,
    WaitUntil,
    Warn,
)
from arcbeam.engine.protocol.layout import Layout, StagePlacement
from arcbeam.engine.protocol.markers import NO_INPUT, digest
from arcbeam.engine.protocol.reports import Awaited, Counts, Restrictions, StageReport, TaskReport
from arcbeam.engine.watermarks.clocks import Local, OutputTime, Port
from arcbeam.engine.watermarks.holds import Hold, HolderKind
from arcbeam.engine.watermarks.stages import StageFlow, WatermarkTimes
from arcbeam.model.commits import Committable
from arcbeam.model.script import AddElements, AdvanceClock, AdvanceWatermark, ScriptEvent, ScriptOver
from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, MAX_TIMESTAMP, Duration, Timestamp

READ, RATES, SUM = Port("read", "main"), Port("rates", "main"), Port("sum", "main")
LAYOUT = Layout(
    (
        StagePlacement(StageFlow("read", (), ("main",), 2), 1, 0),
        StagePlacement(StageFlow("rates", (), ("main",), 2), 2, 0),
        StagePlacement(StageFlow("sum", (READ,), ("main",), 2), 3, 1, (("rates", RATES),)),
    ),
    shards=2,
    tasks=(1, 2),
)
SCRIPTED = replace(LAYOUT, stages=(replace(LAYOUT.stages[0], scripted=True), *LAYOUT.stages[1:]))
"""The same layout, but a script provides the source's elements."""
SETTINGS = CoordinatorSettings(
    budget=MicroBatchBudget(Duration(100), 1000, 1000),
    pace=Pace(
        Duration(100),
        MicroBatchBudget(Duration(10), 100, 100),
        MicroBatchBudget(Duration(1000), 10_000, 10_000),
        Duration(100),
        Duration(1000),
    ),
    patience=Patience(2, Duration(5), Duration(20)),
    retry=Retry(2, Duration(10), Duration(40)),
    deaths=Retry(1, Duration(5), Duration(20)),
    grace=Duration(100),
    haste=Duration(20),
)

Change = Callable[[StageReport], StageReport]


def nothing_left(stage: StageReport) -> StageReport:
    return replace(stage, input=MAX_TIMESTAMP)


def source(until: int, due: int | None, leftover: bool = False, written: int = 1) -> Change:
    """The source has a restriction in shard 0 at time `until`, which is due at `due`."""

    def change(stage: StageReport) -> StageReport:
        if (stage.stage, stage.shard) != ("read", 0):
            return replace(stage, input=MAX_TIMESTAMP if stage.stage in ("rates", "read") else Timestamp(until))
        hold = Hold(Timestamp(until), HolderKind.RESIDUAL, "all~1")
        return replace(
            stage,
            input=Timestamp(until),
            local=Local(hold, {"main": OutputTime(hold)}),
            leftover=leftover,
            next_due=None if due is None else Timestamp(due),
            restrictions=Restrictions(1, 8.0),
            counts=Counts(written=written, resumed=1),
        )

    return change


def scripted(stage: StageReport) -> StageReport:
    """All work is done, and the script holds the source at 5."""
    if stage.stage == "sum":
        return replace(stage, input=Timestamp(5), counts=Counts(written=1))
    if (stage.stage, stage.shard) != ("read", 0):
        return nothing_left(stage)
    hold = Hold(Timestamp(5), HolderKind.SCRIPT, "")
    return replace(stage, input=Timestamp(5), local=Local(hold, {"main": OutputTime(hold)}))


def blocked(until: int) -> Change:
    """Elements of time 7 wait for the window of `rates` that ends at `until`; `rates` is complete."""

    def change(stage: StageReport) -> StageReport:
        if (stage.stage, stage.shard) != ("sum", 1):
            return nothing_left(stage)
        hold = Hold(Timestamp(7), HolderKind.BLOCKED, "rates@77")
        local = Local(hold, {"main": OutputTime(hold)}, RATES)
        return replace(stage, input=Timestamp(7), local=local, awaited=(Awaited(RATES, Timestamp(until)),))

    return change


def held(stage: StageReport) -> StageReport:
    """A hold that is never released."""
    if (stage.stage, stage.shard) != ("sum", 0):
        return nothing_left(stage)
    hold = Hold(Timestamp(5), HolderKind.STATE, "pane", key="EWR")
    return replace(nothing_left(stage), local=Local(None, {"main": OutputTime(None, hold)}), next_event=Timestamp(9))


def new_work(stage: StageReport) -> StageReport:
    """New work appeared after the end."""
    return replace(nothing_left(stage), leftover=True, counts=Counts(written=1))


def unprepared(*names: str) -> Change:
    """All work is done, but these stages still have to prepare to shut down."""
    hold = Hold(END_OF_GLOBAL_WINDOW, HolderKind.UNPREPARED, "")

    def change(stage: StageReport) -> StageReport:
        downstream = stage.stage == "sum" and "read" in names
        input = END_OF_GLOBAL_WINDOW if downstream else MAX_TIMESTAMP
        if stage.stage not in names:
            return replace(stage, input=input)
        return replace(stage, input=input, local=Local(None, {"main": OutputTime(None, hold)}), unprepared=True)

    return change


REPORTS: dict[str, Change] = {
    "nothing left": nothing_left,
    "more": source(5, 0, leftover=True),
    "the same": source(5, 0, leftover=True, written=0),
    "never due": source(5, MAX_TIMESTAMP),
    "new work": new_work,
    "blocked": blocked(9),
    "held": held,
    "sum unprepared": unprepared("sum"),
    "read and sum unprepared": unprepared("read", "sum"),
    "rates and sum unprepared": unprepared("rates", "sum"),
    "scripted": scripted,
}


def reported(
    plan: MicroBatchPlan, change: Change, layout: Layout = LAYOUT, **of_task: object
) -> tuple[TaskReport, ...]:
    """Reports of a consistent run, changed by `change`."""
    reports: list[TaskReport] = []
    input_digest = NO_INPUT
    for level, count in enumerate(layout.tasks[plan.first :], plan.first):
        tokens = [b"%d.%d.%d.%d" % (plan.micro_batch, plan.attempt, level, task) for task in range(count)]
        for task in range(count):
            stages = tuple(
                change(
                    StageReport(
                        placed.name,
                        shard,
                        plan.times.inputs.get(placed.name, Timestamp(0)),
                        Local(None, {output: OutputTime() for output in placed.flow.outputs}),
                    )
                )
                for placed in layout.at(level)
                for shard in layout.range_of(level, task)
            )
            extra = of_task if (level, task) == (1, 0) else {}
            reports.append(TaskReport(level, task, tokens[task], input_digest, stages, **extra))  # type: ignore[arg-type]
        input_digest = digest(input_digest, tokens)
    return tuple(reports)


class Driver:
    """A machine, and its commands."""

    def __init__(self, settings: CoordinatorSettings = SETTINGS, layout: Layout = LAYOUT) -> None:
        self.machine = JobMachine(layout, settings)
        self.layout = layout
        self.now = Timestamp(0)
        self.plan: MicroBatchPlan | None = None
        self.proposed: Propose | None = None
        self.number = 0
        self.publish: PublishCommittables | None = None
        self.finalize: Finalize | None = None
        self.commands: list[Command] = []
        self.last: list[Command] = []

    def send(self, event: Event) -> str:
        self.last = self.machine.handle(event)
        self.machine.validate()
        self.commands += self.last
        for command in self.last:
            match command:
                case RunMicroBatch(plan):
                    self.plan = plan
                case ReadScript(number):
                    self.number = number
                case Propose():
                    self.proposed = command
                case PublishCommittables():
                    self.publish = command
                case Finalize():
                    self.finalize = command
        return "; ".join(map(shown, self.last)) or "-"

    @property
    def warnings(self) -> list[str]:
        return [command.text for command in self.commands if isinstance(command, Warn)]

    @property
    def end(self) -> End | None:
        return next((command for command in self.commands if isinstance(command, End)), None)

    def say(self, line: str) -> str:
        return self.send(self.event(line))

    def event(self, line: str) -> Event:
        word, _, rest = line.partition(" ")
        if word == "clock":
            self.now = Timestamp(int(rest))
            return ClockAdvanced(self.now)
        now, micro_batch, run = self.now, 0, 0
        if word == "start":
            match rest.split():
                case ["fresh", *others]:
                    unbegun = LAYOUT.sources
                case ["with", *names]:
                    unbegun, others = frozenset(names), []
                case others:
                    unbegun = frozenset()
            flags = dict.fromkeys(others, True)
            return JobStarted(now, 0, Timestamp(0), WatermarkTimes(), unbegun, **flags)  # type: ignore[arg-type]
        if self.plan:
            micro_batch, run = self.plan.micro_batch, self.plan.attempt
        proposed = self.proposed.micro_batch if self.proposed else 0
        published = self.publish.micro_batch if self.publish else 0
        match line.split():
            case ["says", *what]:
                return ScriptRead(now, self.number, script_event(*what))
            case ["reports", *what]:
                assert self.plan is not None
                return MicroBatchReported(now, micro_batch, run, Duration(100), self.report(" ".join(what)))
            case ["late", which]:
                micro_batch, run = map(int, which.split("."))
                return MicroBatchReported(now, micro_batch, run, Duration(100), ())
            case ["fails"]:
                return MicroBatchFailed(now, micro_batch, run, "worker lost", True)
            case ["worker", "dies"]:
                return MicroBatchFailed(now, micro_batch, run, "a worker died", True, died=True)
            case ["dies"]:
                return MicroBatchFailed(
                    now, micro_batch, run, "the Spark session has stopped", False, session_stopped=True
                )
            case ["breaks"]:
                return MicroBatchFailed(now, micro_batch, run, "user code raised", False)
            case ["committed"]:
                return CommitDecided(now, proposed)
            case ["conflict"]:
                return CommitConflicted(now, proposed, "host7")
            case ["overtaken"]:
                return Overtaken(now, "host7")
            case ["unknown"]:
                return CommitUnknown(now, proposed, "timeout")
            case ["refused"]:
                return CommitRefused(now, proposed, "no space")
            case ["driver", "fails"]:
                return DriverFailed(now, "a watermark falls")
            case ["published"]:
                return Published(now, published)
            case ["publish", "fails"]:
                return PublishFailed(now, published, "not reached")
            case ["publisher", "dies"]:
                return PublishFailed(now, published, "the Spark session has stopped", session_stopped=True)
            case ["finalized"]:
                return Finalized(now, self.finalize.micro_batch if self.finalize else 0)
            case ["shut", "down"]:
                return ShutDown(now)
            case ["torn", "down"]:
                return TornDown(now)
            case ["drain", name]:
                return DrainRequested(now, name)
            case ["suspend", *names]:
                return SuspendRequested(now, " ".join(names))
            case ["savepoint", *words]:
                return SavepointRequested(now, " ".join(words))
            case ["cancel"]:
                return CancelRequested(now)
        raise ValueError(f"unknown event: {line!r}")

    def report(self, what: str) -> tuple[TaskReport, ...]:
        assert self.plan is not None
        what, _, extra = what.partition(" with ")
        of_task: dict[str, object] = {}
        if "sink" in extra:
            of_task["committables"] = (Committable("sum", b"part-0"),)
        if "callbacks" in extra:
            of_task["finalizations"] = 1
        if "side input" in extra:
            of_task["published"] = (RATES,)
        change = source(5, int(what[4:])) if what.startswith("due ") else REPORTS[what]
        return reported(self.plan, change, self.layout, **of_task)


def script_event(what: str, number: str = "") -> ScriptEvent:
    """The next event of a script."""
    match what:
        case "elements":
            return AddElements("read", ((b"a", Timestamp(7)),))
        case "watermark":
            return AdvanceWatermark("read", Timestamp(int(number)))
        case "clock":
            return AdvanceClock(Duration(int(number)))
        case "end":
            return ScriptOver()
    raise ValueError(f"unknown event of a script: {what!r}")


_SHOWN = {AddElements: "elements", AdvanceWatermark: "watermark", AdvanceClock: "clock", ScriptOver: "end"}


def shown(command: Command) -> str:
    match command:
        case RunMicroBatch(plan):
            new = ["beginning", *sorted(plan.beginning)] if plan.beginning else []
            flags = ["initial"] if plan.beginning == LAYOUT.sources else new
            flags += [flag for flag in ("drain", "prepare") if getattr(plan, flag)]
            with_event = [] if plan.event is None else ["with", _SHOWN[type(plan.event)]]
            return " ".join([f"run {plan.micro_batch}.{plan.attempt}", *flags, *sorted(plan.preparing), *with_event])
        case ReadScript(number):
            return f"read {number}"
        case Abandon(micro_batch, attempt):
            return f"abandon {micro_batch}.{attempt}"
        case WaitUntil(moment):
            return "wait" if moment is None else f"wait {moment}"
        case Propose():
            bare = [] if command.reports else ["bare"]
            names = ["as", *command.savepoints] if command.savepoints else []
            carries_unpublished = ["owing"] if command.carries_unpublished else []
            return " ".join(
                [f"propose {command.micro_batch} {command.mode.value}", *bare, *carries_unpublished, *names]
            )
        case Resolve(micro_batch):
            return f"resolve {micro_batch}"
        case PublishCommittables(micro_batch, committables):
            return f"publish {micro_batch}" if committables else f"publish {micro_batch} of the head"
        case Finalize(micro_batch):
            return f"finalize {micro_batch}"
        case CallShutdown(stages):
            return "shut down " + " ".join(stages)
        case TearDown(stages):
            return "tear down " + " ".join(stages)
        case Warn():
            return "warn"
        case End(state):
            return state.value


def play(script: str, driver: Driver | None = None) -> Driver:
    """Play a script; the commands must be the expected ones."""
    driver = driver or Driver()
    for line in script.strip().splitlines():
        what, _, expected = line.partition("->")
        done = driver.say(what.strip())
        if done != expected.strip():
            raise AssertionError(f"{what.strip()} -> {done}\nexpected: {expected.strip()}\nwarned: {driver.warnings}")
    return driver
