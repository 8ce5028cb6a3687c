"""The stages that a Python worker has open, from task to task and job to job.

Owns when one is opened, used again, and torn down. Must not know what a stage does.
"""

from __future__ import annotations

import gc
import logging
import os
import socket
import sys
import uuid
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, Protocol, TypeVar, cast

from arcbeam.model import texts
from arcbeam.sizes import cache_size
from arcbeam.spark.tasks import workerlog
from arcbeam.store.jobtemp.location import JobLocation

_LOG = logging.getLogger("arcbeam.task")

HOLDERS: Final = "holders/"
"""Names in a job's location that say: there are workers with DoFns whose teardown does something."""

_MOST_OPEN = cache_size(16)
_MOST_JOBS = cache_size(8)
"""One that publishes counts as two."""
_FEW_MODULES = 20
"""So many modules more are not worth another look at all objects."""

_settled_modules = 0


def freeze_imported_objects() -> None:
    """Takes what modules hold from the garbage collector's sight, if modules have been imported since the last time.

    Spark's worker looks for garbage after each task, and the next task waits: with the SDK's modules that takes 80 ms.
    To be called while no processor is open: what is there now is looked at never again.
    """
    global _settled_modules
    if len(sys.modules) > _settled_modules + _FEW_MODULES:
        _settled_modules = len(sys.modules)
        gc.collect()
        gc.freeze()


def look_at_imports() -> None:
    """Undoes `freeze_imported_objects`, also what the worker was forked with."""
    global _settled_modules
    _settled_modules = 0
    gc.unfreeze()


class Held(Protocol):
    """What stays open from task to task: a stage (`arcbeam.model.interfaces.OpenStage`), or a publisher."""

    @property
    def id(self) -> str:
        """By which the order of teardowns knows it."""

    def needs_teardown(self) -> bool:
        """Whether `close` calls a teardown of the user's."""

    def close(self) -> list[str]:
        """Tears down, and returns what went wrong, for people."""


H = TypeVar("H", bound=Held)


class OpenStages:
    """Stages by job and a key: of a few jobs, the least recently used first out, and so in each of them.

    Streaming jobs run beside each other in the same workers, and each of their tasks is short. Invariant: a stage in
    use is in no other task's hands (a worker runs one task at a time).
    """

    def __init__(self) -> None:
        self._jobs: OrderedDict[str, OrderedDict[Hashable, Held]] = OrderedDict()
        self._pid = os.getpid()

    def get(
        self,
        job: str,
        key: Hashable,
        make: Callable[[], H],
        location: JobLocation,
        worker_setup: Callable[[], None] | None,
        *,
        quick: bool,
        most: int = _MOST_OPEN,
    ) -> H:
        """The open stage of that key, or a new one.

        Args:
            job: whose it is.
            key: of the stage, in the job.
            make: opens it.
            location: the job's temporary location, where it is noted who has something to tear down.
            worker_setup: called before the first stage of a job is opened, and perhaps again.
            quick: whether garbage in imported modules may be left alone.
            most: so many of the job stay open.
        """
        if self._pid != os.getpid():  # forked: what the parent opened is not ours
            self._jobs.clear()
            self._pid = os.getpid()
        stages = self._jobs.setdefault(job, OrderedDict())
        self._jobs.move_to_end(job)
        while len(self._jobs) > _MOST_JOBS:
            self.close_job(next(iter(self._jobs)))
        stage = stages.get(key)
        if stage is None:
            # SUBTLE: before anything of the SDK is imported: it silences what the SDK says at import.
            if worker_setup is not None:
                worker_setup()
            if not quick:
                look_at_imports()
            elif not any(self._jobs.values()):
                freeze_imported_objects()
            stage = stages[key] = make()
            if stage.needs_teardown():
                location.put_bytes(f"{HOLDERS}{uuid.uuid4().hex}", worker_name().encode())
            while len(stages) > most:
                self._close(stages.popitem(last=False)[1])
        stages.move_to_end(key)
        return cast(H, stage)

    def of(self, job: str) -> list[Any]:
        """All that is open of a job, in no particular order."""
        return [] if self._pid != os.getpid() else list(self._jobs.get(job, {}).values())

    def discard(self, job: str, key: Hashable) -> None:
        """Throws a stage away after a failure; its teardown is still called."""
        stage = self._jobs[job].pop(key, None) if job in self._jobs else None
        if stage is not None:
            self._close(stage)

    def close_job(self, job: str, order: Sequence[str] = ()) -> list[str]:
        """Tears down what a job left.

        Args:
            job: which.
            order: ids of its stages: these in this order, and before all others.

        Returns:
            What went wrong, for people.
        """
        places = {id: place for place, id in enumerate(order)}
        stages = list(self._jobs.pop(job, OrderedDict[Hashable, Held]()).values())
        if places:
            stages.sort(key=lambda stage: places.get(stage.id, len(places)))
        return [error for stage in stages for error in self._close(stage)]

    @staticmethod
    def _close(stage: Held) -> list[str]:
        try:
            errors = stage.close()
        except Exception as e:
            _LOG.warning("teardown failed", exc_info=True)
            return [f"{type(e).__name__}: {texts.said(str, e)}"]
        return errors


open_stages: Final = OpenStages()
"""Of this process."""


def publishing(job: str) -> str:
    """By which a job's open publishers are known: what ends with a failed task of the job does not end them."""
    return f"{job}/publish"


def tear_down(job: str, order: Sequence[str] = ()) -> list[str]:
    """Tears down a finished job's stages in this worker, in that order, and its publishers; what went wrong."""
    errors = [*open_stages.close_job(job, order), *open_stages.close_job(publishing(job))]
    workerlog.at("", "")
    return errors


def worker_name() -> str:
    """The name of this process among all workers."""
    return f"{socket.gethostname()}:{os.getpid()}"
