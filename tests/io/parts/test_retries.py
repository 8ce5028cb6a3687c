"""Publishers of part files that die, pause or lose power at each of their operations, and are called again."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from apache_beam.io.filesystem import BeamIOError

from arcbeam.io.parts.formats import Text
from arcbeam.io.parts.naming import GLOBAL, Template
from arcbeam.io.parts.packs import Roll
from arcbeam.io.parts.places import staging_for
from arcbeam.io.parts.publisher import PublishParts
from arcbeam.io.parts.staging import Staging
from arcbeam.io.parts.successes import success_of
from arcbeam.io.parts.work import PartFile, PartWriter, Plain, Work
from arcbeam.model.attempts import process_state
from tests.chaos.power import Recording, each_outcome
from tests.io.parts.jobs import JOB, attempt

pytestmark = [
    pytest.mark.contract("END-06"),
    # A killed process closes nothing.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
Names = Callable[[], list[str]]


class Killed(BaseException):
    """Simulates kill -9."""


class Turns:
    """Counts the operations of one process on a folder.

    Args:
        at: the operation before which something happens; nothing happens if there are fewer.
        what: is called then. If it raises `Killed`, the process performs no further operation.
    """

    def __init__(self, at: int = -1, what: Callable[[], None] = lambda: None) -> None:
        self.at, self.what, self.count = at, what, 0
        self._dead = self._busy = False

    def __call__(self) -> None:
        if self._dead:
            raise Killed
        if self._busy:
            return  # an operation of another process
        self.count += 1
        if self.count == self.at:
            self._busy = True
            try:
                self.what()
            except Killed:
                self._dead = True
                raise
            finally:
                self._busy = False


class Counted:
    """Wraps an object, so that each call of a method is an operation."""

    def __init__(self, inner: Any, turns: Turns) -> None:
        self._inner, self._turns = inner, turns

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name in ("scheme", "exceptions", "get_paginator") or not callable(found):
            return found

        def call(*arguments: Any, **options: Any) -> Any:
            self._turns()
            return found(*arguments, **options)

        return call


@contextmanager
def counted(staging: Staging, turns: Turns) -> Iterator[None]:
    """While this is open, operations of the staging are counted."""
    for name in ("_s3", "_files"):
        if hasattr(staging, name):
            inner = getattr(staging, name)
            setattr(staging, name, Counted(inner, turns))
            yield
            setattr(staging, name, inner)
            return
    recording = Recording(Path(staging.path).parent)
    recording.before = turns
    with recording:
        yield


def die() -> None:
    raise Killed


class Place:
    """Part files of a job below a path. Each call stages or publishes like a separate process."""

    def __init__(self, staging: Staging, options: dict[str, Any], *, in_micro_batches: bool = True) -> None:
        self.staging, self.in_micro_batches = staging, in_micro_batches
        template = Template("{shard}-{part}", destinations=False, shards=None)
        self.work = Work(staging.path, Text(), template, Roll(), options)
        self.files: list[PartFile] = []

    def stage(self, micro_batch: int, token: str, tasks: int = 2, *, lost: bool = False) -> list[Plain]:
        """Stage a file for each task and a success file, as an attempt of a micro-batch; return the committables.

        Args:
            micro_batch: the job's micro-batch; in a bounded pipeline 0 is used, and this is the number of the run.
            token: token of the attempt.
            tasks: number of tasks.
            lost: whether the attempt is not committed.
        """
        at = micro_batch if self.in_micro_batches else 0
        made = []
        for task in range(tasks):
            with attempt(at, (task,), token):
                assert process_state.attempt is not None
                shard = (micro_batch, task) if self.in_micro_batches else (task,)
                writer = PartWriter(self.work, self.staging, process_state.attempt, GLOBAL, "", shard, 0, named=True)
                writer.add_records([f"{micro_batch:05d} {task} {'x' * 40}"])
                made.append(writer.finish())
        if lost:
            return []
        if not self.in_micro_batches:
            self.files = []
        self.files += made
        with attempt(at, (0,), token):
            own = [file for file in self.files if file.micro_batch == at]
            over = success_of("_SUCCESS", self.files, own)
        return [*(file.plain() for file in made if self.in_micro_batches), over]

    def publish(self, committables: Sequence[Plain], turns: Turns | None = None) -> bool:
        """Publish with a new publisher; return False if it was killed or collided with another one."""
        publisher = PublishParts(self.work, sweeps=True)
        publisher.setup()
        (staging,) = publisher._stagings.values()
        try:
            with counted(staging, turns or Turns()), warnings.catch_warnings():
                # No file may be missing, however often it is published.
                warnings.simplefilter("error")
                publisher.publish(committables)
        except Killed:
            return False
        except (BeamIOError, OSError):
            # One of two publishers that rename the same file; it is called again.
            if turns is None:
                raise
            return False
        return True

    def sweep(self, micro_batch: int) -> None:
        self.staging.sweep(JOB, micro_batch if self.in_micro_batches else 0)

    def seen(self, names: Names) -> dict[str, str]:
        """Return the files that readers see. Each must be complete."""
        found = {name: (self.staging.get(name) or b"").decode() for name in names()}
        over = found.pop("_SUCCESS", None)
        # Runs of a bounded pipeline replace files of earlier runs one by one.
        if over and self.in_micro_batches:
            for each in json.loads(over)["files"]:
                assert len(found.get(each["name"], "")) == each["bytes"], f"{each} is missing"
        assert over != "", "_SUCCESS is empty"
        for name, text in found.items():
            micro_batch, task, rest = text.split()
            assert rest == "x" * 40, name
            assert name == (
                f"{int(micro_batch):05d}-{int(task):05d}-00000" if self.in_micro_batches else f"{int(task):05d}-00000"
            )
        return found


@pytest.fixture(params=[True, False], ids=["micro-batches", "bounded"])
def place(request: pytest.FixtureRequest, staging: Staging) -> Place:
    """A folder on each file system, for a streaming and for a bounded job."""
    options = request.getfixturevalue("s3_options") if staging.path.startswith("s3://") else {}
    return Place(staging, options, in_micro_batches=request.param)


def pause_and_kill(place: Place, names: Names, first: int, second: int, number: int) -> tuple[bool, bool]:
    """One publisher pauses before its operation `first`; another is killed before `second`; the first continues.

    Then Spark's next attempt, the driver's next call, and the next driver publish the same files.

    Returns:
        Whether each of the two had that many operations.
    """
    micro_batch, tasks = 2 * number + 1, 2 + number % 2
    place.stage(micro_batch, f"lost-{number}", lost=True)
    committables = place.stage(micro_batch, f"t{number}", tasks)
    other = Turns(second, die)

    def meanwhile() -> None:
        place.publish(committables, other)

    paused = Turns(first, meanwhile)
    place.publish(committables, paused)
    place.seen(names)
    killed = Turns(first, die)
    place.publish(committables, killed)
    place.seen(names)
    for _ in range(2):
        assert place.publish(committables)
    assert {f"{micro_batch:05d} {task} {'x' * 40}\n" for task in range(tasks)} <= set(place.seen(names).values())
    place.sweep(micro_batch)
    assert list(place.staging.leftovers()) == []
    assert len(place.seen(names)) == len(place.files)
    return paused.count >= first, other.count >= second


def test_publisher_that_pauses_or_dies_leaves_whole_files(place: Place, names: Names) -> None:
    """Each operation of the first publisher, and one of the other; on S3, which is slow here, some of them."""
    slow = place.staging.names_first
    chance = random.Random(3)
    for number, first in enumerate(itertools.count(1, 7 if slow else 1)):
        had, _ = pause_and_kill(place, names, first, chance.randrange(1, 30), number)
        if not had:
            break
    assert first > 4


@pytest.mark.long
def test_publishers_that_pause_and_die_leave_whole_files(place: Place, names: Names) -> None:
    """Each pair of operations; on S3 each of the first publisher, with three of the other."""
    slow, number, chance = place.staging.names_first, 0, random.Random(4)
    for first in itertools.count(1):
        had = False
        # On S3 an undisturbed publisher has 9 to 14 operations.
        for second in chance.sample(range(1, 15), 3) if slow else itertools.count(1):
            first_had, other_had = pause_and_kill(place, names, first, second, number := number + 1)
            had = had or first_had
            if not slow and not (first_had and other_had):
                break
        if not had:
            break
    assert number > 20


def test_small_file_is_whole_beside_another_writer(staging: Staging, request: pytest.FixtureRequest) -> None:
    """One writer pauses before each operation, while another writes the same file and dies before each of its own."""
    options = request.getfixturevalue("s3_options") if staging.path.startswith("s3://") else {}
    data, staged, pairs = b"x" * 100, ".arcbeam/job-1/1-t-0", 0

    def put(turns: Turns) -> None:
        of_process = staging_for(staging.path, options)
        # The other writer may have renamed its file, or moved the old one aside.
        with counted(of_process, turns), contextlib.suppress(Killed, OSError):
            of_process.put("small", data, staged)

    for first, second in itertools.product(range(1, 8), range(1, 8)):
        paused = Turns(first, functools.partial(put, Turns(second, die)))
        put(paused)
        assert staging.get("small") == data
        pairs += paused.count >= first
    put(Turns())
    assert staging.get("small") == data
    staging.sweep(JOB, 1)
    assert list(staging.leftovers()) == []
    assert pairs >= 7


def test_older_publisher_does_not_undo_a_newer_micro_batch(place: Place, names: Names) -> None:
    """A publisher pauses at each of its operations, while two more micro-batches are committed and published."""
    if not place.in_micro_batches:
        pytest.skip("a bounded pipeline has no micro-batches")
    for number, at in enumerate(itertools.count(1, 7 if place.staging.names_first else 1)):
        micro_batch = 10 * number + 1
        old = place.stage(micro_batch, f"old{number}")

        def meanwhile(micro_batch: int = micro_batch, number: int = number, old: list[Plain] = old) -> None:
            assert place.publish(old)
            for later in (1, 2):
                assert place.publish(place.stage(micro_batch + later, f"new{number}-{later}"))
                place.sweep(micro_batch + later)

        paused = Turns(at, meanwhile)
        place.publish(old, paused)
        seen = place.seen(names)
        if paused.count < at:
            break
        assert len(seen) == len(place.files)
        assert list(place.staging.leftovers()) == []


@pytest.mark.contract("STORE-09")
@pytest.mark.parametrize("in_micro_batches", [True, False], ids=["micro-batches", "bounded"])
@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.long)], ids=["sampled", "all"])
def test_power_failure_leaves_whole_files(tmp_path: Path, *, whole: bool, in_micro_batches: bool) -> None:
    """The manifest is stored elsewhere. After the power failure its files are published again, and exist once."""
    disk = tmp_path / "disk"
    (disk / "above").mkdir(parents=True)
    path = disk / "above" / "a" / "out"
    recording = Recording(disk)
    with recording:
        place = Place(staging_for(str(path), {}), {}, in_micro_batches=in_micro_batches)
        for micro_batch in (1, 2, 3):
            place.stage(micro_batch, f"lost{micro_batch}", lost=True)
            committables = place.stage(micro_batch, f"t{micro_batch}", tasks=4 - micro_batch)
            files = list(place.files)
            recording.note(("committed", micro_batch, committables, files))
            publisher = PublishParts(place.work, sweeps=True)
            publisher.setup()
            publisher.publish(committables)
            recording.note(("published", micro_batch, committables, files))
            publisher.sweep(JOB, micro_batch if in_micro_batches else 0)

    def promised(folder: Path, notes: Sequence[Any]) -> None:
        root = folder / "above" / "a" / "out"
        now = Place(staging_for(str(root), {}), {}, in_micro_batches=in_micro_batches)

        def names() -> list[str]:
            found = (str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
            return sorted(name for name in found if not name.startswith("."))

        seen = now.seen(names) if root.exists() else {}
        committed = [note for note in notes if note[0] == "committed"]
        if not committed:
            assert not seen
            return
        _, micro_batch, committables, files = committed[-1]
        for note in notes:
            if note[0] == "published" and (in_micro_batches or note[1] == micro_batch):
                for file in note[3]:
                    assert file.staged.name in seen, "it was published"
        own = json.loads(json.dumps(committables).replace(str(path), str(root)))
        assert now.publish(own)
        now.sweep(micro_batch)
        assert sorted(now.seen(names)) == sorted(file.staged.name for file in files)
        assert now.staging.get("_SUCCESS") is not None
        assert all(each.micro_batch > micro_batch for each in now.staging.leftovers())

    outcomes = tmp_path / "outcomes"
    outcomes.mkdir()
    assert each_outcome(recording, outcomes, promised, 3000 if whole else 200, extremes=whole) > 40
