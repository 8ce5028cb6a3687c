"""Points in the life of a job at which one of its processes is killed, once, by itself or by another.

The job's code is unchanged: when modules of arcbeam are imported in the processes of a tested job, they get a call at
these points. A trial's folder names the next point and its victim.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

POINTS: Final = (
    "in a bundle",
    "before the marker",
    "after the files",
    "before the manifest",
    "after the manifest",
    "in the middle of publishing",
    "prepared, not committed",
    "before shutdown",
    "after shutdown",
)
VICTIMS: Final = ("driver", "executor", "worker")
SDK_POINTS: Final = (
    "an SDK worker is starting",
    "in a bundle",
    "a state request",
    "a checkpoint is requested",
    "before the marker",
    "after the files",
    "before the manifest",
    "after the manifest",
    "bundles are finalized",
    "prepared, not committed",
    "after shutdown",
    "teardown",
)
"""The points of a job whose transforms run in SDK workers."""
SDK_VICTIMS: Final = ("SDK worker", "worker", "server", "submitter")
"""Its victims. The job's driver is in the job server."""
_START_SECONDS: Final = 30.0


def arm(folder: Path, point: str, victim: str) -> None:
    """Arm a point: it is the next."""
    (folder / ".point").write_text(f"{point}/{victim}")
    os.replace(folder / ".point", folder / "point")


def is_hit(folder: Path) -> bool:
    """Return whether a process was killed."""
    return (folder / "hit").exists()


def reached(point: str, me: int = 0) -> None:
    """Report that a process is at a point. If that point is armed, the victim is killed.

    Args:
        point: the point.
        me: the process; 0: this one.
    """
    folder = Path(os.environ.get("ARCBEAM_TRIAL", "/nonexistent"))
    with contextlib.suppress(FileNotFoundError):
        armed, victim = (folder / "point").read_text().split("/")
        if armed == point:
            # Only one of the processes that get here can do that.
            os.rename(folder / "point", folder / "taken")
            _kill(folder, victim, me or os.getpid())


def is_next(point: str) -> bool:
    """Return whether a point is armed."""
    with contextlib.suppress(FileNotFoundError):
        return Path(os.environ["ARCBEAM_TRIAL"], "point").read_text().startswith(f"{point}/")
    return False


def _kill(folder: Path, victim: str, me: int) -> None:
    found = _found(folder, victim, me)
    if not found:
        return
    # Before the kill, because it may end this process.
    (folder / "hit").write_text(str(found))
    try:
        os.kill(found, signal.SIGKILL)
    except ProcessLookupError:
        (folder / "hit").unlink()
    if victim == "executor" and me != int((folder / "driver").read_text()):
        # What this process does after this point does not count.
        time.sleep(60)


def _found(folder: Path, victim: str, me: int) -> int:
    """Return the process to kill; negative: a process group; 0: none exists."""
    # SUBTLE: imported late, because workers that are not tested at this moment do not need it.
    from tests.chaos.test_kills import below, executors, worker_above, workers

    driver = int((folder / "driver").read_text())
    if victim == "driver":
        return -driver
    if victim in ("server", "submitter"):
        return int((folder / victim).read_text())
    if victim == "SDK worker":
        return _sdk_worker(driver, me)
    if me == driver:
        among = sorted(executors(driver) if victim == "executor" else workers(driver))
        return random.Random(7).choice(among) if among else 0
    if victim == "worker":
        return worker_above(me)
    processes = below(driver)
    parent = me
    while "CoarseGrainedExecutorBackend" not in processes[parent][1]:
        parent = processes[parent][0]
    return parent


def _sdk_worker(driver: int, me: int) -> int:
    """Return this process, if it is an SDK worker, or else one of those below it; 0: none exists."""
    from tests.chaos.test_kills import sdk_workers

    if me in sdk_workers(driver):
        return me
    end = time.monotonic() + _START_SECONDS
    while not (found := sdk_workers(me)) and time.monotonic() < end:
        # Its process is being started.
        time.sleep(0.01)
    return min(found, default=0)


# In the processes of a job.


def _task(module: Any) -> None:
    write = module.TaskAttempt.write

    def written(self: Any, report: Any) -> Any:
        result = write(self, report)
        reached("after the files")
        return result

    module.TaskAttempt.write = written


def _publisher(module: Any) -> None:
    publish = module.OpenPublisher.publish

    def published(self: Any, committables: Sequence[bytes], *, again: bool) -> None:
        if not is_next("in the middle of publishing"):
            publish(self, committables, again=again)
            return
        half = max(1, len(committables) // 2)
        publish(self, committables[:half], again=again)
        reached("in the middle of publishing")
        publish(self, committables[half:], again=again)

    module.OpenPublisher.publish = published


def _driver(module: Any) -> None:
    from arcbeam.engine.coordinator import CallShutdown, CommitDecided, Propose, TearDown
    from arcbeam.model.commits import CommitMode

    begins, handled = module.StreamRun.begins, module.StreamRun.handled

    def beginning(self: Any, command: Any) -> None:
        if isinstance(command, Propose):
            if command.mode in (CommitMode.DONE, CommitMode.DRAINED):
                reached("prepared, not committed")
            reached("before the manifest")
        elif isinstance(command, CallShutdown):
            reached("before shutdown")
        elif isinstance(command, TearDown):
            reached("after shutdown")
        begins(self, command)

    def handling(self: Any, event: Any, commands: Any) -> None:
        handled(self, event, commands)
        if isinstance(event, CommitDecided):
            reached("after the manifest")

    module.StreamRun.begins, module.StreamRun.handled = beginning, handling


def _connection(module: Any) -> None:
    connected, finalize = module.Connection.connected, module.Connection.finalize

    def connecting(self: Any, seconds: float) -> None:
        reached("an SDK worker is starting")
        connected(self, seconds)

    def finalizing(self: Any, bundle: str) -> None:
        reached("bundles are finalized")
        finalize(self, bundle)

    module.Connection.connected, module.Connection.finalize = connecting, finalizing


def _state(module: Any) -> None:
    answer = module.StateRequests.answer

    def answering(self: Any, request: Any) -> Any:
        reached("a state request")
        return answer(self, request)

    module.StateRequests.answer = answering


def _operation(module: Any) -> None:
    ask, finish = module.RemoteOperation.ask, module.RemoteOperation.finish

    def asking(self: Any, *how: Any, **request: Any) -> Any:
        if "process_bundle_split" in request:
            reached("a checkpoint is requested")
        return ask(self, *how, **request)

    def finished(self: Any) -> None:
        finish(self)
        reached("before the marker")

    module.RemoteOperation.ask, module.RemoteOperation.finish = asking, finished


def _workers(module: Any) -> None:
    release = module.StageWorkers.release

    def releasing(self: Any) -> None:
        reached("teardown")
        release(self)

    module.StageWorkers.release = releasing


def _producing(module: Any) -> None:
    from tests.io.kafka.kills.points import install

    install(module, reached)


_PATCHES: Final[dict[str, Callable[[Any], None]]] = {
    "arcbeam.streaming.task.task": _task,
    "arcbeam.harness.operations.publishoperation": _publisher,
    "arcbeam.spark.streaming.streamingjob": _driver,
    "arcbeam.io.kafka.producing": _producing,
    "arcbeam.fnapi.service.connection": _connection,
    "arcbeam.fnapi.stage.staterequests": _state,
    "arcbeam.fnapi.stage.remoteoperation": _operation,
    "arcbeam.fnapi.environments.workers": _workers,
}


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in _PATCHES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        assert spec is not None
        assert spec.loader is not None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            _PATCHES[name](module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def install() -> None:
    """Install the points in this process."""
    sys.meta_path.insert(0, _Finder())


if __name__ == "__main__":
    # For a process of another language: the one that has started this one is at the point.
    reached(sys.argv[1], os.getppid())
