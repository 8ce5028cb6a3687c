"""A shard of a stage whose worker is a script."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import pytest

from arcbeam.engine.protocol.layout import StagePlacement
from arcbeam.engine.watermarks.stages import StageFlow
from arcbeam.fnapi.environments import external as external_workers
from arcbeam.fnapi.environments.workers import StageWorkers
from arcbeam.fnapi.stage.remotestage import open_with_workers
from arcbeam.harness.operations.taskcontext import TaskSettings
from arcbeam.model.plan import Stage
from arcbeam.model.timestamps import MIN_TIMESTAMP, Timestamp
from arcbeam.model.windows import GLOBAL_WINDOW, NO_PANE
from arcbeam.testing.views import MemoryView
from tests.fnapi.scripted import ScriptedWorker
from tests.harness.drive import _ListOutbox

Script = Callable[[ScriptedWorker, str], None]
"""What a worker does in a bundle with this id."""


class World:
    """A shard of a stage, whose worker does what scripts say: one for each bundle.

    Args:
        of: the stage.
        monkeypatch: lets the scripted worker be started.
        sides: the side inputs, if there are any.

    Attributes:
        workers: the worker.
        outbox: what was written.
    """

    def __init__(self, of: Stage, monkeypatch: pytest.MonkeyPatch, sides: Any = None) -> None:
        self.workers: list[ScriptedWorker] = []
        monkeypatch.setattr(external_workers, "start", self._start)
        monkeypatch.setattr(external_workers, "stop", lambda payload, id: None)
        self.stage, self.view = (
            open_with_workers(of, TaskSettings(shards=1, bulk_values=False), StageWorkers("job")),
            MemoryView(),
        )
        self.outbox = _ListOutbox()
        self.stage.begin(self.outbox, 0, lambda channel: None, sides, Timestamp(0))  # type: ignore[arg-type, return-value]
        self.runner = self.stage.runner(self.view, StagePlacement(StageFlow("it", (), ("main",)), 1, 0))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stage.abandon()
        self.stage.close()
        for each in self.workers:
            each.end()

    def _start(self, payload: Any, id: str, address: str, restart: str) -> None:
        self.workers.append(ScriptedWorker(address, id).__enter__())

    def plays(self, script: Script, call: Callable[[], Any]) -> Any:
        """Return the result of a call during which the worker plays a script."""
        failed: list[BaseException] = []

        def play() -> None:
            try:
                (worker,) = self.workers
                script(worker, worker.request().instruction_id)
            except BaseException as e:
                failed.append(e)
                self.workers[0].end()

        playing = threading.Thread(target=play)
        playing.start()
        try:
            return call()
        finally:
            playing.join()
            if failed:
                raise failed[0]

    def process(self, script: Script, *keys: str) -> list[Any]:
        """Return the timers that a bundle with an element for each key has led to."""

        def call() -> list[Any]:
            timers: list[Any] = []
            for key in keys or ("a",):
                timers += self.runner.process(key.encode(), [(1, MIN_TIMESTAMP, (GLOBAL_WINDOW,), NO_PANE)]).timers
            return [*timers, *self.runner.settle().timers]

        found: list[Any] = self.plays(script, call)
        return found
