"""A drain of restrictions that a scripted worker processes and truncates."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_fn_api_pb2 as fn_pb

from arcbeam.engine.protocol.reports import StageReport
from arcbeam.fnapi.descriptors import TRUNCATED
from arcbeam.fnapi.environments import external as external_workers
from arcbeam.harness.operations.taskcontext import TaskSettings
from arcbeam.model.plan import Stage
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP
from arcbeam.model.windows import GLOBAL_WINDOW, NO_PANE
from tests.fnapi.scripted import ScriptedWorker
from tests.fnapi.stage.traps.test_restriction_traps import finish, left, made, of, progress, split
from tests.harness.streaming.microbatches import MicroBatch, Shard

__all__ = ["of"]  # the stage
pytestmark = pytest.mark.contract("API-03", "END-02", "SDF-12")
TRUNCATE = common_urns.sdf_components.TRUNCATE_SIZED_RESTRICTION.urn


class World:
    """A shard of the splittable stage; a script plays the worker in each micro-batch."""

    def __init__(self, of: Stage) -> None:
        self.workers: list[ScriptedWorker] = []
        self.of = of

    def start(self, payload: Any, id: str, address: str, restart: str) -> None:
        self.workers.append(ScriptedWorker(address, id).__enter__())

    def open(self) -> None:
        sides = SimpleNamespace(writer=lambda channel: None)
        self.shard = Shard(self.of, TaskSettings(shards=1, bulk_values=False), sides, "job")

    def run(self, script: Callable[[ScriptedWorker], None], *elements: Any, drain: bool = False) -> StageReport:
        """Run a micro-batch, whose budget ends at once, with these elements."""
        failed: list[BaseException] = []

        def play() -> None:
            try:
                script(self.workers[0])
            except BaseException as e:
                failed.append(e)
                self.workers[0].end()

        playing = threading.Thread(target=play)
        playing.start()
        arrived = [(b"", [(each, MIN_TIMESTAMP, (GLOBAL_WINDOW,), NO_PANE)]) for each in elements]
        try:
            return self.shard.run(MicroBatch(arrived, MAX_TIMESTAMP, looks=1, drain=drain))
        finally:
            playing.join()
            if failed:
                raise failed[0]


@pytest.fixture
def world(of: Stage, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    world = World(of)
    monkeypatch.setattr(external_workers, "start", world.start)
    monkeypatch.setattr(external_workers, "stop", lambda payload, id: None)
    world.open()
    yield world
    world.shard.stage.abandon()
    world.shard.stage.close()
    world.workers[0].end()


def arrived(worker: ScriptedWorker) -> tuple[str, bool, bytes]:
    """Return the id of the next bundle, whether it truncates, and its input."""
    # The budget has ended, so the runner may ask about a bundle just before it ends.
    while (request := worker.request()).HasField("process_bundle_progress"):
        worker.respond(request.instruction_id, process_bundle_progress=fn_pb.ProcessBundleProgressResponse())
    descriptor = worker.descriptor(request.process_bundle.process_bundle_descriptor_id)
    truncates = TRUNCATE in {transform.spec.urn for transform in descriptor.transforms.values()}
    return request.instruction_id, truncates, b"".join(each.data for each in worker.inputs())


def truncated(worker: ScriptedWorker, id: str, data: bytes) -> None:
    worker.put_out(id, TRUNCATED, data, last=True)
    worker.respond(id, process_bundle=fn_pb.ProcessBundleResponse())


ELEMENT = ((3, (b"restriction", b"estimator")), 8.0)
SHORT = b"short" + struct.pack(">d", 1.0)


def test_what_runs_is_split_first_and_its_rest_truncated(of: Stage, world: World) -> None:
    def running(worker: ScriptedWorker) -> None:
        id, truncates, _ = arrived(worker)
        assert not truncates
        progress(worker, made(of, 1))
        split(worker, 0.0, residual_roots=[left(b"rest", 3.0, 7)])
        finish(worker, id)

    def draining(worker: ScriptedWorker) -> None:
        id, truncates, rest = arrived(worker)
        assert (truncates, rest[:4]) == (True, b"rest")
        truncated(worker, id, SHORT)
        id, truncates, rest = arrived(worker)
        assert (truncates, rest) == (False, SHORT)
        finish(worker, id, left(b"again", 1.0, 8))

    def ending(worker: ScriptedWorker) -> None:
        id, truncates, rest = arrived(worker)
        assert (truncates, rest[:5]) == (False, b"again"), "nothing is truncated twice"
        finish(worker, id)

    assert world.run(running, ELEMENT).restrictions.live == 1
    assert world.run(draining, drain=True).restrictions.live == 1
    assert world.run(ending, drain=True).restrictions.live == 0


@pytest.mark.parametrize("kept", [True, False])
def test_restriction_that_arrives_in_a_drain_is_truncated(world: World, kept: bool) -> None:
    def draining(worker: ScriptedWorker) -> None:
        id, truncates, _ = arrived(worker)
        assert truncates
        truncated(worker, id, SHORT if kept else b"")
        if kept:
            id, truncates, rest = arrived(worker)
            assert (truncates, rest) == (False, SHORT)
            finish(worker, id)

    assert world.run(draining, ELEMENT, drain=True).restrictions.live == 0
