"""The stages that a Python worker keeps open, from task to task and job to job.

Owns when a stage is opened, reused and torn down. Must not know what a stage does.
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
"""Prefix of names in a job's location. Such a name exists if a worker has DoFns whose teardown does something."""

_OPEN_MAX = cache_size(16)
_JOBS_MAX = cache_size(8)
"""A job with publishers counts as two."""
_NEW_MODULES_MAX = 20
"""With at most this many new modules, freezing all objects again is not worth its time."""

_settled_modules = 0


def freeze_imported_objects() -> None:
    """Hide the objects of imported modules from the garbage collector, if modules were imported since the last call.

    Spark's worker collects garbage after each task, and the next task waits. With the SDK's modules that takes 80 ms.
    Call this only while no processor is open: objects that exist now are never collected.
    """
    global _settled_modules
    if len(sys.modules) > _settled_modules + _NEW_MODULES_MAX:
        _settled_modules = len(sys.modules)
        gc.collect()
        gc.freeze()


def look_at_imports() -> None:
    """Undo `freeze_imported_objects`, and the freezing before the worker was forked."""
    global _settled_modules
    _settled_modules = 0
    gc.unfreeze()


class OpenResource(Protocol):
    """What stays open from task to task: a stage (`arcbeam.model.interfaces.OpenStage`) or a publisher."""

    @property
    def id(self) -> str:
        """The id by which the order of teardowns names it."""

    def needs_teardown(self) -> bool:
        """Return whether `close` calls a teardown of the user's."""

    def close(self) -> list[str]:
        """Tear down; return the errors as texts."""


H = TypeVar("H", bound=OpenResource)


class OpenStages:
    """Open stages by job and key. Only a few jobs, and a few stages of each, stay open; the least recently used close.

    Streaming jobs run concurrently in the same workers, and each of their tasks is short. Invariant: no other task uses
    a stage that is in use, because a worker runs one task at a time.
    """

    def __init__(self) -> None:
        self._jobs: OrderedDict[str, OrderedDict[Hashable, OpenResource]] = OrderedDict()
        self._pid = os.getpid()
        self._set_up = ""

    def get(
        self,
        job: str,
        key: Hashable,
        make: Callable[[], H],
        location: JobLocation,
        worker_setup: Callable[[], None] | None,
        *,
        quick: bool,
        most: int = _OPEN_MAX,
    ) -> H:
        """Return the open stage of that key, or open one.

        Args:
            job: the stage's job.
            key: the stage's key in the job.
            make: opens the stage.
            location: the job's temporary location; workers that must tear something down are recorded there.
            worker_setup: called before a stage is opened, and after a task of another job.
            quick: whether to skip garbage collection of imported modules.
            most: the number of the job's stages that stay open.
        """
        if self._pid != os.getpid():  # forked: the parent's stages belong to the parent
            self._jobs.clear()
            self._pid = os.getpid()
        stages = self._jobs.setdefault(job, OrderedDict())
        self._jobs.move_to_end(job)
        while len(self._jobs) > _JOBS_MAX:
            self.close_job(next(iter(self._jobs)))
        stage = stages.get(key)
        if worker_setup is not None and (stage is None or self._set_up != job):
            # SUBTLE: before any import of the SDK, because the setup silences what the SDK logs at import.
            worker_setup()
        self._set_up = job
        if stage is None:
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
        """Return all open stages of a job, in no particular order."""
        return [] if self._pid != os.getpid() else list(self._jobs.get(job, {}).values())

    def discard(self, job: str, key: Hashable) -> None:
        """Close a stage after a failure, including its teardown."""
        stage = self._jobs[job].pop(key, None) if job in self._jobs else None
        if stage is not None:
            self._close(stage)

    def close_job(self, job: str, order: Sequence[str] = ()) -> list[str]:
        """Tear down a job's open stages.

        Args:
            job: the job.
            order: ids of stages to tear down first, in this order.

        Returns:
            The errors as texts.
        """
        places = {id: place for place, id in enumerate(order)}
        stages = list(self._jobs.pop(job, OrderedDict[Hashable, OpenResource]()).values())
        if places:
            stages.sort(key=lambda stage: places.get(stage.id, len(places)))
        return [error for stage in stages for error in self._close(stage)]

    @staticmethod
    def _close(stage: OpenResource) -> list[str]:
        try:
            errors = stage.close()
        except Exception as e:
            _LOG.warning("teardown failed", exc_info=True)
            return [f"{type(e).__name__}: {texts.safe_text(str, e)}"]
        return errors


open_stages: Final = OpenStages()
"""The open stages of this process."""


def publishing(job: str) -> str:
    """Return the key of a job's open publishers; they stay open when a task of the job fails."""
    return f"{job}/publish"


def tear_down(job: str, order: Sequence[str] = ()) -> list[str]:
    """Tear down a finished job's stages in this worker, in that order, and its publishers; return the errors."""
    errors = [*open_stages.close_job(job, order), *open_stages.close_job(publishing(job))]
    workerlog.at("", "")
    return errors


def worker_name() -> str:
    """Return the name of this process among all workers."""
    return f"{socket.gethostname()}:{os.getpid()}"
