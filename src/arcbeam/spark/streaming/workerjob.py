"""A job in a Python worker: its stored data, and what a process keeps of it from task to task.

Owns where tasks find the data of their job, and how many jobs a process keeps.
"""

from __future__ import annotations

import pickle
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace

from arcbeam.harness.operations.taskcontext import TaskSettings
from arcbeam.model.files import SideFile
from arcbeam.secrets import without_credentials
from arcbeam.sizes import cache_size, memo, threshold
from arcbeam.spark.session.versions import Versions
from arcbeam.store.blobs.backends import open_blobs
from arcbeam.store.blobs.claims import ProcessFolder
from arcbeam.store.jobtemp.location import JobLocation
from arcbeam.store.shards.cache import HostCache
from arcbeam.streaming.physicalplan import PhysicalPlan
from arcbeam.streaming.task.finalizing import copies_folder
from arcbeam.streaming.task.outputs import TaskStore
from arcbeam.streaming.task.sidefiles import SideCopies, SideFileReader


@dataclass(frozen=True, slots=True)
class StreamingJob:
    """The data of a job for all its tasks, the same in every micro-batch.

    Attributes:
        id: id of the job's run.
        physical: the job's stages.
        settings: the job's settings.
        location: the job's temporary location.
        store: URL of the job's folder, which has its state.
        versions: the driver's versions; a worker with other versions fails.
        worker_setup: called in a worker before it opens the job's first stage, and perhaps again.
        name: the job's name, the same for all drivers that resume it.
    """

    id: str
    physical: PhysicalPlan
    settings: TaskSettings
    location: JobLocation
    store: str
    versions: Versions
    worker_setup: Callable[[], None] | None = None
    name: str = ""


_PLAN = "plan"
STORE = "checkpoint_dir"
"""Name of the secret with the URL of the job's folder, if the URL has credentials."""


def give(job: StreamingJob) -> None:
    """Store a job where its tasks find it: it is too large to be sent with each of them.

    SUBTLE: without its secrets, which must not be in a file. They are sent with the location, in each task's function.
    """
    stored = replace(job, location=JobLocation(without_credentials(job.location.url)))
    stored = replace(stored, store=without_credentials(job.store))
    job.location.put_bytes(_PLAN, pickle.dumps(stored, protocol=5))


_scratch = ProcessFolder("scratch")
_WRITERS = threshold(8)
"""Files that a task writes at the same time."""


class WorkerJob:
    """The state of a job in this process, kept from task to task.

    Attributes:
        job: the job.
        files: writes and reads the job's files.
    """

    def __init__(self, job: StreamingJob) -> None:
        self.job = job
        self._sides: dict[int, tuple[tuple[SideFile, ...], SideFileReader]] = memo()
        self._copies: dict[int, SideCopies] = {}
        # The driver's opening exists before any micro-batch.
        cache = HostCache(copies_folder())
        cache.sweep()
        self.files = TaskStore(open_blobs(job.store, made=True), cache, _scratch.path(), _WRITERS)

    def sides(self, level: int, given: tuple[SideFile, ...]) -> SideFileReader:
        """Return the side inputs of a level; kept, with their decoded values, as long as the files stay the same."""
        files = tuple(file for file in given if file.channel in self.job.physical.sides_read[level])
        known = self._sides.get(level)
        if known is not None and known[0] == files:
            return known[1]
        copies, physical = self._copies.setdefault(level, SideCopies()), self.job.physical
        copies.keep({file.name for file in files})
        sides = SideFileReader(
            self.files.blobs, self.files.scratch, files, physical.side_parts, copies, physical.newest
        )
        self._sides[level] = files, sides
        return sides


_JOBS_MAX = cache_size(4)
_jobs: OrderedDict[str, WorkerJob] = OrderedDict()
"""By the URL of the job's location."""


def worker_job(location: JobLocation) -> WorkerJob:
    """Return the state of a job in this process; a job that it does not have yet is read from its location."""
    found = _jobs.get(location.url)
    if found is None:
        job = pickle.loads(location.get_bytes(_PLAN))
        assert isinstance(job, StreamingJob)
        job = replace(job, location=location, store=location.secrets.get(STORE, job.store))
        found = _jobs[location.url] = WorkerJob(job)
        while len(_jobs) > _JOBS_MAX:
            _jobs.popitem(last=False)
    _jobs.move_to_end(location.url)
    return found
