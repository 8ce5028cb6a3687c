"""A simulation: a store, hosts, drivers one after another or two at once, a clock; what goes wrong and when.

Owns the order of everything that happens. Must not know what a stage does, nor what is right.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

from typing_extensions import override

from arcbeam.engine.coordinator import (
    CancelRequested,
    Command,
    DrainRequested,
    Event,
    JobMachine,
    Mode,
    SavepointRequested,
    SuspendRequested,
)
from arcbeam.model.timestamps import Timestamp
from arcbeam.store.blobs.errors import DeterminateError, FencedError, IndeterminateError
from arcbeam.store.log import relocating
from arcbeam.store.log.chain import read_manifest
from arcbeam.store.log.commitlog import CommitLog
from arcbeam.store.log.relocating import Move, moves
from arcbeam.store.log.savepoints import copy_savepoint
from arcbeam.store.manifest.values import Manifest, Pin
from arcbeam.store.shards.cache import HostCache
from arcbeam.streaming.driverstate import progress_of
from arcbeam.testing.blobs import MemoryBlobs
from arcbeam.testing.faults import Faults, UnreliableBlobs
from simulator.judging.records import Broken, Part
from simulator.judging.reference import honest
from simulator.judging.watching import Watcher
from simulator.playing.cluster import Cluster
from simulator.playing.driver import Driver, Surroundings
from simulator.playing.hosts import Host, MemoryHost
from simulator.playing.jobs import Job
from simulator.playing.mischief import Mischief
from simulator.scenario.kinds import Source
from simulator.scenario.scenarios import FaultKind, Request, RequestKind, Scenario

_MOST_MICRO_BATCHES = 1000
"""A job that has not ended by then starves something; the longest that was seen to end has 654 (seed 60486)."""
_MOST_AT_ONCE = 20
"""Events at one moment of the clock: a driver that has more of them spins. Five times as many as were seen."""
_MOST_BETWEEN = 400
"""Events between two commits: likewise."""


class World(Surroundings):
    """One simulation.

    Args:
        scenario: what happens.
        folder: a local one, for files on their way.
        blobs: the store; another one if the job was copied.
        parts: what may be published.
        micro_batches: what may be done before it counts as starved.

    Attributes:
        happened: how often each kind of fault and request did happen, and what else is worth counting.
        story: what happened, in order.
        earlier: drivers that there were where the job was copied from.
        at_once, most_at_once: events since the clock has moved, and the most that there were.
        most_between: the most events between two commits.
    """

    def __init__(
        self,
        scenario: Scenario,
        folder: Path,
        blobs: MemoryBlobs | None = None,
        parts: dict[bytes, Part] | None = None,
    ) -> None:
        self.scenario = scenario
        self.now = Timestamp(1_000_000)
        self.happened: Counter[str] = Counter()
        self.story: list[str] = []
        self._folder = folder
        self._blobs = MemoryBlobs() if blobs is None else blobs
        self._parts: dict[bytes, Part] = {} if parts is None else parts
        self.watcher = Watcher(scenario.pipeline, self._blobs, self._parts, self.tell, self._count)
        self._chance = random.Random(f"world {scenario.seed}")
        self._hosts = [self._host(number) for number in range(scenario.hosts)]
        self._mischief = Mischief(scenario.faults, self._note, self.tell, self._start, self._lose)
        self._requests = sorted(scenario.requests, key=lambda request: request.at)
        self._drivers: list[Driver] = []
        self._started = self.earlier = 0
        self._tokens = count()
        self._left_behind: list[Callable[[], object]] = []
        self._rewind: str = ""
        # The newest epoch with a manifest, and since when every driver can know of it.
        self._epoch, self._since = 0, self.now
        self._asked: Counter[RequestKind] = Counter()
        self._copies: list[Callable[[], World]] = []
        self.at_once = self.most_at_once = self.most_between = 0
        self._between: tuple[int, int] = (0, 0)

    # What happens.

    def run(self) -> None:
        """Plays it to its end.

        Raises:
            Broken: something is wrong.
        """
        while True:
            living = [driver for driver in self._drivers if not driver.over]
            if not living:
                if self._drivers and self._drivers[-1].ended_well:
                    break
                self._pause_and_start()
                continue
            times = [(at, number) for number, each in enumerate(living) if (at := each.next_at()) is not None]
            if not times:
                raise Broken("nothing happens any more")
            at, number = min(times)
            self._comes_to(max(self.now, at))
            living[number].advance()
            self.watcher.look()
            self._check_fenced(living)
            if self.watcher.commits > _MOST_MICRO_BATCHES:
                raise Broken(f"the job has not ended behind {_MOST_MICRO_BATCHES} micro-batches")
        self._settle()
        self.watcher.check_files()
        self.watcher.check_results()
        for copy in self._copies:
            world = copy()
            try:
                world.run()
            finally:
                world.close()

    def _check_fenced(self, living: Sequence[Driver]) -> None:
        """Drivers that were overtaken end in time."""
        head = self.watcher.head
        if head is not None and (head.epoch > self._epoch or not self._mischief.is_fair()):
            self._epoch, self._since = head.epoch, self.now
        for driver in living:
            if driver.log.epoch < self._epoch:
                driver.check_fenced(self._since)

    def _comes_to(self, moment: Timestamp) -> None:
        """The clock moves on, or another event happens at the same moment."""
        self.at_once = self.at_once + 1 if moment == self.now else 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        if self.at_once > _MOST_AT_ONCE:
            raise Broken(f"a busy loop: {self.at_once} events at {moment}, and the clock does not move")
        self.now = moment
        commits, events = self._between
        events = events + 1 if commits == self.watcher.commits else 1
        self._between = self.watcher.commits, events
        self.most_between = max(self.most_between, events)
        if events > _MOST_BETWEEN:
            raise Broken(f"a busy loop: {events} events after commit {commits}, and none has led to another")

    def close(self) -> None:
        """Lets go of what hosts have open."""
        if self.watcher.head is not None:
            for host in self._hosts:
                host.forget(self.watcher.head.job)

    def _settle(self) -> None:
        """Whatever is still on its way comes, and changes nothing."""
        head = self.watcher.head
        for driver in self._drivers:
            driver.blobs.settle()
        self.watcher.look()
        if self.watcher.head is not head:
            raise Broken("something became real after the end of the job")

    def _pause_and_start(self) -> None:
        if self._started > 60:
            raise Broken("the job is started again and again")
        self.now = Timestamp(self.now + 1_000_000)
        self._start()

    def _start(self) -> None:
        """A new driver takes the job over."""
        number, scenario = self._started, self.scenario
        self._started += 1
        name = f"driver {number}"
        beside = self._drivers[0].blobs if self._drivers else None
        blobs = UnreliableBlobs(self._blobs, scenario.seed * 100 + number, beside=beside)
        blobs.faults = self._mischief.weather()
        savepoint, self._rewind = self._rewind, ""
        pins = self.watcher.head.pins if self.watcher.head else ()
        if savepoint and all(pin.name != savepoint for pin in pins):
            savepoint = ""
        exchanges = scenario.exchanges[number % len(scenario.exchanges)]
        pipeline = scenario.pipeline.as_of(self.earlier + number).deeper(exchanges)
        first, *others = scenario.tasks[number % len(scenario.tasks)]
        tasks = (first, *(1,) * exchanges, *others)[: pipeline.levels]
        moved: tuple[Move, ...] = ()

        def adapted(origin: Manifest) -> Manifest:
            nonlocal moved
            moved = moves(origin.shape, pipeline.shape, pipeline.numbers)
            return origin

        try:
            log = CommitLog.open(
                blobs,
                pipeline.shape,
                self.now,
                driver=name,
                savepoint=savepoint,
                finish=not savepoint,
                force=bool(savepoint),
                adapt=adapted,
                fill=lambda opening: relocating.relocated(blobs, opening, moved, self._folder / "scratch"),
                token=lambda: f"{scenario.seed}-{next(self._tokens)}",
            )
        except (FencedError, DeterminateError, IndeterminateError) as e:
            self.tell(f"{name} could not take over: {e}")
            self.happened["could not take over"] += 1
            self.watcher.look()
            self._mischief.clear_up()
            return
        self.tell(f"{name} takes over at micro-batch {log.head.micro_batch} with tasks {tasks} {savepoint}")
        self._count_start(log.head, savepoint, tasks)
        self.watcher.look()
        if savepoint:
            self.watcher.wishes.resumed(log.head, savepoint)
        if moved:
            self.happened["state was moved to other levels"] += 1
        layout = pipeline.layout(tasks)
        if layout.sources.difference(progress_of(log.head).begun) and progress_of(log.head).begun:
            self.happened["a source joined"] += 1
        last = max(
            (e.time for s in scenario.pipeline.stages if isinstance(s.kind, Source) for e in s.kind.events), default=0
        )
        job = Job(
            pipeline,
            layout,
            blobs,
            log.epoch,
            self._folder / "scratch",
            self._parts,
            honest(pipeline),
            scenario.looks,
            last + 1,
        )
        cluster = Cluster(self._hosts, self._chance, self._mischief.of_task, self._note, self.tell, self._left_behind)
        self._drivers.append(Driver(name, job, log, blobs, cluster, self, JobMachine(layout), scenario.keep))
        self._ask_what_is_due(self._drivers[-1])

    def _count_start(self, opening: Manifest, savepoint: str, tasks: tuple[int, ...]) -> None:
        if savepoint:
            self.happened[RequestKind.REWIND.value] += 1
        if self._drivers and self._drivers[-1].job.layout.tasks != tasks:
            self.happened["tasks were rescaled"] += 1
        if opening.mode.value in ("done", "drained"):
            self.happened["an ended job was finished"] += 1
        if opening.committables:
            self.happened["what was not published was taken over"] += 1

    def _host(self, number: int) -> Host:
        folder = self._folder / f"host-{number}"
        return (
            HostCache(folder, map_bytes=1 << 20) if self.scenario.real_cache else MemoryHost(self._folder / "scratch")
        )

    def _count(self, what: str) -> None:
        self.happened[what] += 1

    def _note(self, kind: FaultKind) -> None:
        self.happened[kind.value] += 1

    def _lose(self, number: int) -> None:
        """A host loses all it has."""
        if self.watcher.head is not None:
            self._hosts[number % len(self._hosts)].forget(self.watcher.head.job)

    # `Surroundings` of a driver.

    @override
    def is_overtaken(self, driver: Driver) -> bool:
        self.watcher.look()
        head = self.watcher.head
        return head is not None and head.epoch > driver.log.epoch and driver.blobs.faults == Faults()

    @override
    def before(self, driver: Driver, command: Command) -> None:
        self._mischief.before(driver, command)

    @override
    def handled(self, driver: Driver, event: Event, commands: Sequence[Command]) -> None:
        self.watcher.handled(driver.log.epoch, event, commands)

    @override
    def publish(self, ids: list[bytes]) -> bool:
        self.watcher.look()
        fails = self._mischief.publishing_fails()
        for id in ids[: len(ids) // 2] if fails else ids:
            self.watcher.publish(id)
        return not fails

    @override
    def committed(self, driver: Driver) -> None:
        self.watcher.look()
        self.watcher.check_files()
        self._ask_what_is_due(driver)

    @override
    def swept(self) -> None:
        self.happened["sweeps"] += 1
        # What was committed since may have given a savepoint up.
        self.watcher.look()
        self.watcher.check_files()

    @override
    def outcome(self, name: str) -> None:
        self.happened[name] += 1

    @override
    def report_again(self) -> bool:
        return self._mischief.report_again()

    @override
    def gives_up(self) -> bool:
        return self._mischief.gives_up()

    @override
    def stalls(self) -> int:
        return self._mischief.stalls()

    @override
    def worker_dies(self) -> bool:
        return self._mischief.worker_dies()

    @override
    def took(self) -> int:
        return self._chance.choice((1, 50, 1000, 2500))

    @override
    def tell(self, text: str) -> None:
        self.story.append(f"{self.now / 1e6:10.6f} {text}")

    # Requests.

    def _ask_what_is_due(self, driver: Driver) -> None:
        while self._requests and self._requests[0].at <= self.watcher.commits:
            self._ask(driver, self._requests.pop(0))

    def _ask(self, driver: Driver, request: Request) -> None:
        if driver.over or driver.machine.mode is not Mode.RUNNING:
            return
        self._asked[request.kind] += 1
        name = f"{request.kind.name.lower()}-{self._asked[request.kind]}"
        self.tell(f"REQUEST: {request.kind.value} ({name})")
        event: Event | None = None
        match request.kind:
            case RequestKind.SAVEPOINT:
                event = SavepointRequested(self.now, name)
            case RequestKind.SUSPEND:
                event = SuspendRequested(self.now, name)
            case RequestKind.DRAIN:
                event = DrainRequested(self.now, name)
            case RequestKind.CANCEL:
                event = CancelRequested(self.now)
            case RequestKind.REWIND:
                if not self._pins(driver):
                    return
                self._rewind = self._chance.choice(self._pins(driver)).name
                if self._chance.random() < 0.5:
                    driver.killed = True
                else:
                    self._start()  # and the driver that runs will see
                return
            case RequestKind.COPY:
                self._copy(driver)
                return
            case RequestKind.RELEASE:
                if not self._pins(driver):
                    return
                name = self._pins(driver)[0].name
                driver.release(name)
                self.watcher.wishes.release(driver.log.epoch, name)
        if event is not None:
            driver.tell_later(event, self.took())
        self.happened[request.kind.value] += 1

    def _pins(self, driver: Driver) -> tuple[Pin, ...]:
        return driver.log.head.pins

    def _copy(self, driver: Driver) -> None:
        """Copies the oldest savepoint; the copy is run when this job has ended."""
        head, pins = driver.log.head, self._pins(driver)
        if not pins:
            return
        target, pin = MemoryBlobs(), pins[0]
        copy = copy_savepoint(
            self._blobs, head, pin.name, target, self._folder / "scratch", token=lambda: f"copy-{next(self._tokens)}"
        )
        records = self.watcher.counting(read_manifest(self._blobs, pin.micro_batch))
        self.happened[RequestKind.COPY.value] += 1
        self._copies.append(lambda: self._elsewhere(copy, target, records))

    def _elsewhere(self, copy: Manifest, target: MemoryBlobs, records: Mapping[int, tuple[bytes, ...]]) -> World:
        self.tell(f"THE COPY of micro-batch {copy.micro_batch}")
        world = World(replace(self.scenario, faults=(), requests=()), self._folder, target, dict(self._parts))
        world.story, world.happened = self.story, self.happened
        world.now, world.earlier = self.now, self._started
        world.watcher.begin_at(copy, records, self.watcher)
        return world


def play(scenario: Scenario, story: list[str] | None = None) -> World:
    """Plays a scenario to its end; the world as it is then.

    Args:
        scenario: what happens.
        story: gets what happened, also if it fails.

    Raises:
        Broken: as `World.run`.
    """
    folder = Path(tempfile.mkdtemp(prefix="simulate-", dir=_fast()))
    world = World(scenario, folder)
    world.story = world.story if story is None else story
    try:
        world.run()
    finally:
        world.close()
        shutil.rmtree(folder, ignore_errors=True)
    return world


def _fast() -> str | None:
    """A folder in memory, if there is one."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
