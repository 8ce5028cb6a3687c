"""A simulation: a store, hosts, one or more drivers, a clock, and the faults.

Owns the order of all events. Must not know the work of a stage, nor which results are correct.
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
from arcbeam.engine.rescaling.rescaling import RescaledStage
from arcbeam.model.timestamps import MIN_TIMESTAMP, Timestamp
from arcbeam.store.blobs.errors import DeterminateError, FencedError, IndeterminateError
from arcbeam.store.log import relocating
from arcbeam.store.log.chain import read_manifest
from arcbeam.store.log.commitlog import CommitLog
from arcbeam.store.log.relocating import StageMove, moves
from arcbeam.store.log.savepoints import copy_savepoint
from arcbeam.store.manifest.values import ENDED, Manifest, Pin
from arcbeam.store.shards.cache import HostCache
from arcbeam.streaming.driverstate import progress_of
from arcbeam.streaming.restore import rescaling
from arcbeam.streaming.restore.rescaling import resumed_from
from arcbeam.testing.blobs import MemoryBlobs
from arcbeam.testing.faults import Faults, UnreliableBlobs
from simulator.judging.records import Broken, Part
from simulator.judging.reference import honest
from simulator.judging.watching import Watcher
from simulator.playing.cluster import Cluster
from simulator.playing.driver import Driver, Surroundings
from simulator.playing.faults import FaultInjector
from simulator.playing.hosts import Host, MemoryHost
from simulator.playing.jobs import Job
from simulator.scenario.kinds import Keep, Source
from simulator.scenario.plans import Pipeline
from simulator.scenario.scenarios import FaultKind, Request, RequestKind, Scenario

_MOST_MICRO_BATCHES = 1000
"""A job with more micro-batches starves some of its work. The longest job seen has 654 (seed 60486)."""
_MOST_AT_ONCE = 20
"""The allowed number of events at one moment of the clock. A driver with more spins. Five times the maximum seen."""
_MOST_BETWEEN = 400
"""The allowed number of events between two commits. Five times the maximum seen."""


class World(Surroundings):
    """One simulation.

    Args:
        scenario: the scenario to play.
        folder: a local folder for temporary files.
        blobs: the store; another one for a copied job.
        parts: the committables that may be published.

    Attributes:
        happened: the number of faults and requests by kind, and of other notable events.
        event_log: the events, in order.
        earlier: the number of drivers of the original, for a copied job.
        at_once, most_at_once: the number of events since the clock advanced, and its maximum.
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
        self.event_log: list[str] = []
        self._folder = folder
        self._blobs = MemoryBlobs() if blobs is None else blobs
        self._parts: dict[bytes, Part] = {} if parts is None else parts
        self.watcher = Watcher(scenario.pipeline, self._blobs, self._parts, self.tell, self._count)
        self._chance = random.Random(f"world {scenario.seed}")
        self._hosts = [self._host(number) for number in range(scenario.hosts)]
        self._faults = FaultInjector(scenario.faults, self._note, self.tell, self._start, self._lose)
        self._requests = sorted(scenario.requests, key=lambda request: request.at)
        self._drivers: list[Driver] = []
        self._started = self.earlier = 0
        self._tokens = count()
        self._delayed: list[Callable[[], object]] = []
        self._rewind: str = ""
        self._shards: int | None = None
        # The newest epoch with a manifest, and the time since which every driver can read that.
        self._epoch, self._since = 0, self.now
        self._requested: Counter[RequestKind] = Counter()
        self._copies: list[Callable[[], World]] = []
        self.at_once = self.most_at_once = self.most_between = 0
        self._between: tuple[int, int] = (0, 0)

    # Events.

    def run(self) -> None:
        """Play the scenario to its end.

        Raises:
            Broken: an invariant does not hold, or a result is wrong.
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
                raise Broken("no driver has a next event")
            at, number = min(times)
            self._comes_to(max(self.now, at))
            living[number].advance()
            self.watcher.look()
            self._check_fenced(living)
            if self.watcher.commits > _MOST_MICRO_BATCHES:
                raise Broken(f"the job has not ended after {_MOST_MICRO_BATCHES} micro-batches")
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
        """Check that drivers end in time after another one took over."""
        head = self.watcher.head
        if head is not None and (head.epoch > self._epoch or not self._faults.is_fair()):
            self._epoch, self._since = head.epoch, self.now
        for driver in living:
            if driver.log.epoch < self._epoch:
                driver.check_fenced(self._since)

    def _comes_to(self, moment: Timestamp) -> None:
        """Advance the clock to the next event, which may be at the same moment."""
        self.at_once = self.at_once + 1 if moment == self.now else 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        if self.at_once > _MOST_AT_ONCE:
            raise Broken(f"busy loop: {self.at_once} events at {moment}, but the clock does not advance")
        self.now = moment
        commits, events = self._between
        events = events + 1 if commits == self.watcher.commits else 1
        self._between = self.watcher.commits, events
        self.most_between = max(self.most_between, events)
        if events > _MOST_BETWEEN:
            raise Broken(f"busy loop: {events} events after commit {commits}, but no further commit")

    def close(self) -> None:
        """Close the files that hosts have open."""
        if self.watcher.head is not None:
            for host in self._hosts:
                host.forget(self.watcher.head.job)

    def _settle(self) -> None:
        """Let all delayed writes reach the store, and check that they change nothing."""
        head = self.watcher.head
        for driver in self._drivers:
            driver.blobs.settle()
        self.watcher.look()
        if self.watcher.head is not head:
            raise Broken("a micro-batch was committed after the end of the job")

    def _pause_and_start(self) -> None:
        if self._started > 60:
            raise Broken(f"the job was started {self._started} times without reaching its end")
        self.now = Timestamp(self.now + 1_000_000)
        self._start()

    def _start(self) -> None:
        """Start a new driver that takes over the job."""
        number, scenario = self._started, self.scenario
        self._started += 1
        name = f"driver {number}"
        beside = self._drivers[0].blobs if self._drivers else None
        blobs = UnreliableBlobs(self._blobs, scenario.seed * 100 + number, beside=beside)
        blobs.faults = self._faults.weather()
        savepoint, self._rewind = self._rewind, ""
        pins = self.watcher.head.pins if self.watcher.head else ()
        if savepoint and all(pin.name != savepoint for pin in pins):
            savepoint = ""
        exchanges = scenario.exchanges[number % len(scenario.exchanges)]
        pipeline = scenario.pipeline.as_of(self.earlier + number).deeper(exchanges)
        moved: tuple[StageMove, ...] = ()
        had: int | None = None

        def adapted(origin: Manifest) -> Manifest:
            nonlocal moved, had
            moved = moves(origin.shape, pipeline.shape, pipeline.numbers)
            had = None if origin.mode in ENDED and not savepoint else origin.shape.shards
            return replace(origin, shape=replace(origin.shape, shards=pipeline.shards))

        def filled(opening: Manifest) -> Manifest:
            scratch = self._folder / "scratch"
            opening = relocating.relocated(blobs, opening, moved, scratch)
            if had in (None, pipeline.shards):
                return opening
            assert had is not None
            return rescaling.rescaled(blobs, opening, had, scratch, _rescaled_stages(pipeline, opening))

        try:
            resumed = resumed_from(blobs, savepoint)
            own = scenario.pipeline.shards if resumed is None else resumed.shape.shards
            pipeline = pipeline.of_shards(own if self._shards is None else self._shards)
            log = CommitLog.open(
                blobs,
                pipeline.shape,
                self.now,
                driver=name,
                savepoint=savepoint,
                finish=not savepoint,
                force=bool(savepoint),
                discard=bool(savepoint),
                adapt=adapted,
                fill=filled,
                token=lambda: f"{scenario.seed}-{next(self._tokens)}",
            )
        except (FencedError, DeterminateError, IndeterminateError) as e:
            self.tell(f"{name} could not take over: {e}")
            self.happened["could not take over"] += 1
            self.watcher.look()
            self._faults.clear_up()
            return
        first, *others = scenario.tasks[number % len(scenario.tasks)]
        wanted = (first, *(1,) * exchanges, *others)[: pipeline.levels]
        tasks = tuple(min(each, pipeline.shards) for each in wanted)
        self._shards = None
        self.tell(f"{name} takes over at micro-batch {log.head.micro_batch} with tasks {tasks} {savepoint}")
        self._count_start(log.head, savepoint, tasks)
        self.watcher.look()
        if savepoint:
            self.watcher.requests.resumed(log.head, savepoint)
        if log.head.mode in ENDED:
            self.watcher.requests.finishing(log.epoch)
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
        cluster = Cluster(self._hosts, self._chance, self._faults.of_task, self._note, self.tell, self._delayed)
        self._drivers.append(Driver(name, job, log, blobs, cluster, self, JobMachine(layout), scenario.keep))
        self._send_due_requests(self._drivers[-1])

    def _count_start(self, opening: Manifest, savepoint: str, tasks: tuple[int, ...]) -> None:
        if savepoint:
            self.happened[RequestKind.REWIND.value] += 1
        if self._drivers and self._drivers[-1].job.layout.tasks != tasks:
            self.happened["tasks were rescaled"] += 1
        if opening.mode.value in ("done", "drained"):
            self.happened["an ended job was finished"] += 1
        if opening.committables:
            self.happened["unpublished committables were taken over"] += 1

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
        """Delete all data of a host."""
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
        self._faults.before(driver, command)

    @override
    def handled(self, driver: Driver, event: Event, commands: Sequence[Command]) -> None:
        self.watcher.handled(driver.log.epoch, event, commands)

    @override
    def publish(self, ids: list[bytes]) -> bool:
        self.watcher.look()
        fails = self._faults.publishing_fails()
        for id in ids[: len(ids) // 2] if fails else ids:
            self.watcher.publish(id)
        return not fails

    @override
    def committed(self, driver: Driver) -> None:
        self.watcher.look()
        self.watcher.check_files()
        self._send_due_requests(driver)

    @override
    def swept(self) -> None:
        self.happened["sweeps"] += 1
        # A newer commit may have released a savepoint.
        self.watcher.look()
        self.watcher.check_files()

    @override
    def outcome(self, name: str) -> None:
        self.happened[name] += 1

    @override
    def report_again(self) -> bool:
        return self._faults.report_again()

    @override
    def gives_up(self) -> bool:
        return self._faults.gives_up()

    @override
    def stalls(self) -> int:
        return self._faults.stalls()

    @override
    def worker_dies(self) -> bool:
        return self._faults.worker_dies()

    @override
    def took(self) -> int:
        return self._chance.choice((1, 50, 1000, 2500))

    @override
    def tell(self, text: str) -> None:
        self.event_log.append(f"{self.now / 1e6:10.6f} {text}")

    # Requests.

    def _send_due_requests(self, driver: Driver) -> None:
        while self._requests and self._requests[0].at <= self.watcher.commits:
            self._send(driver, self._requests.pop(0))

    def _send(self, driver: Driver, request: Request) -> None:
        if driver.over or driver.machine.mode is not Mode.RUNNING:
            return
        self._requested[request.kind] += 1
        name = f"{request.kind.name.lower()}-{self._requested[request.kind]}"
        self.tell(f"REQUEST: {request.kind.value} ({name})")
        event: Event | None = None
        match request.kind:
            case RequestKind.SAVEPOINT:
                event = SavepointRequested(self.now, name)
            case RequestKind.SUSPEND:
                event = SuspendRequested(self.now, name)
            case RequestKind.RESCALE:
                event, self._shards = SuspendRequested(self.now, name), request.number
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
                    self._start()  # the running driver must notice that
                return
            case RequestKind.COPY:
                self._copy(driver)
                return
            case RequestKind.RELEASE:
                if not self._pins(driver):
                    return
                name = self._pins(driver)[0].name
                driver.release(name)
                self.watcher.requests.release(driver.log.epoch, name)
        if event is not None:
            driver.schedule(event, self.took())
        self.happened[request.kind.value] += 1

    def _pins(self, driver: Driver) -> tuple[Pin, ...]:
        return driver.log.head.pins

    def _copy(self, driver: Driver) -> None:
        """Copy the oldest savepoint; the copy runs after the end of this job."""
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
        world.event_log, world.happened = self.event_log, self.happened
        world.now, world.earlier = self.now, self._started
        world.watcher.begin_at(copy, records, self.watcher)
        return world


def _rescaled_stages(pipeline: Pipeline, opening: Manifest) -> dict[int, RescaledStage]:
    upstream = {of.stage: of.upstream for of in opening.watermarks}
    return {
        pipeline.numbers[of.name]: RescaledStage(
            of.name, isinstance(of.kind, Keep), upstream.get(of.name, MIN_TIMESTAMP)
        )
        for of in pipeline.stages
    }


def play(scenario: Scenario, event_log: list[str] | None = None) -> World:
    """Play a scenario to its end, and return the world.

    Args:
        scenario: the scenario to play.
        event_log: a list that gets the events, also after a failure.

    Raises:
        Broken: as `World.run`.
    """
    folder = Path(tempfile.mkdtemp(prefix="simulate-", dir=_fast()))
    world = World(scenario, folder)
    world.event_log = world.event_log if event_log is None else event_log
    try:
        world.run()
    finally:
        world.close()
        shutil.rmtree(folder, ignore_errors=True)
    return world


def _fast() -> str | None:
    """Return a folder in memory, if there is one."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
