"""A stage of an unbounded pipeline that needs SDK workers: for its transforms, for its windows, or for both.

The task's process has the stage's data path and state, as for embedded Python.
"""

from __future__ import annotations

from types import FrameType
from typing import Any

from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from typing_extensions import override

from arcbeam.engine.protocol.layout import StagePlacement
from arcbeam.engine.protocol.stagekinds import Grouped
from arcbeam.fnapi.descriptors import descriptor, with_paged_groups
from arcbeam.fnapi.environments.workers import StageWorkers
from arcbeam.fnapi.service.server import server_here
from arcbeam.fnapi.stage import remoteoperation
from arcbeam.fnapi.stage.calls import serve_nothing
from arcbeam.fnapi.stage.collectionsamples import CollectionSamples
from arcbeam.fnapi.stage.encodedgroups import EncodedGroups
from arcbeam.fnapi.stage.keybatch import KeyBatch
from arcbeam.fnapi.stage.remoteoperation import RemoteOperation
from arcbeam.fnapi.stage.remoterestrictions import RemoteRestrictions
from arcbeam.fnapi.stage.remoterunner import RemoteRunner
from arcbeam.fnapi.stage.staterequests import StateRequests
from arcbeam.fnapi.stage.windowcalls import WindowCalls
from arcbeam.harness.operations.taskcontext import TaskSettings
from arcbeam.harness.streaming.clocks import TaskClock
from arcbeam.harness.streaming.stagecode import EmbeddedCode, StageCode
from arcbeam.harness.streaming.stageparts import StageParts
from arcbeam.harness.streaming.streamingstage import StreamingStage
from arcbeam.model.attempts import IN_SDK_WORKER
from arcbeam.model.interfaces import StateView
from arcbeam.model.plan import Stage
from arcbeam.model.urns import INTERVAL_WINDOW_URN

remoteoperation.register()


def open_with_workers(
    stage: Stage, settings: TaskSettings, workers: StageWorkers, *, sampled: bool = False
) -> StreamingStage:
    """Open a stage that has a part for a worker, or whose windows are merged in a worker.

    Args:
        stage: the stage to run.
        settings: the job's settings.
        workers: start as they are needed; the stage releases them when it closes.
        sampled: see `StageParts`.

    Raises:
        SdkWorkerLostError: there is no worker.
    """
    parts = StageParts(stage, settings, sampled=sampled)
    try:
        if stage.merges_in_worker:
            _merge_in_worker(parts, workers)
        code = EmbeddedCode(parts) if stage.remote is None else RemoteCode(parts, workers)
    except BaseException:
        # SUBTLE: the caller gets no stage to close. The first worker may run, and the second one not start.
        parts.processor.close()
        workers.release()
        raise
    return StreamingStage(code, workers.release)


def _merge_in_worker(parts: StageParts, workers: StageWorkers) -> None:
    root = parts.processor.root
    windows, step = root.windowing.windowfn, root.name_context.step_name.removesuffix("/Read")
    components = runner_pb.Components.FromString(parts.processor.stage.payload)
    environment = components.environments[windows.strategy.environment_id]
    calls = _window_calls(parts, workers, environment.SerializeToString(deterministic=True), step)
    windows.merged = calls.merging(windows.strategy)


def _window_calls(parts: StageParts, workers: StageWorkers, environment: bytes, step: str) -> WindowCalls:
    stage, worker = parts.processor.stage, workers.acquire(environment)
    coders = runner_pb.Components.FromString(stage.payload).coders
    for coder in coders.values():
        if coder.spec.urn == INTERVAL_WINDOW_URN:
            coder.spec.urn = common_urns.coders.INTERVAL_WINDOW.urn
    shares = stage.remote is not None and stage.remote.environment == environment
    serve = _operation(parts).serve if shares else serve_nothing
    return WindowCalls(worker, f"{workers.job}/{stage.uid}", coders, server_here().address, step, serve)


def _operation(parts: StageParts) -> RemoteOperation:
    return next(op for op in parts.processor.sdk.ops.values() if isinstance(op, RemoteOperation))


class RemoteCode(StageCode):
    """User code that an SDK worker runs.

    Args:
        parts: the parts of the stage, which has a part for a worker.
        workers: the workers of the stage.

    Raises:
        SdkWorkerLostError: there is no worker.
    """

    def __init__(self, parts: StageParts, workers: StageWorkers) -> None:
        stage = parts.processor.stage
        assert stage.remote is not None
        self.parts, self._operation = parts, _operation(parts)
        worker = workers.acquire(stage.remote.environment)
        self._made = descriptor(f"{IN_SDK_WORKER}{workers.job}/{stage.uid}", stage.remote, server_here().address)
        self._key_batch = self._lot_of(stage.remote.source.pcoll) if stage.stateful else None
        requests = StateRequests(stage, parts.state, self._key_batch)
        self._samples: CollectionSamples | None = None
        paged = isinstance(parts.kind, Grouped) and with_paged_groups(self._made, stage.remote)
        callbacks = parts.processor.bundles.callbacks
        self._operation.connect(worker, stage.remote, self._made, requests, callbacks.add)
        self._groups: EncodedGroups | None = None
        if isinstance(parts.kind, Grouped):
            self._groups = EncodedGroups.of(self._operation.input_coder, parts)
        if paged:
            self._operation.page_groups(parts.processor.root.written_coder.wrapped_value_coder.value_coder())
        self.restrictions = (
            RemoteRestrictions(stage, parts.processor, self._operation, worker, self._made, requests)
            if stage.splittable
            else None
        )
        if self._key_batch is not None:
            self._operation.keys_are(self._key_batch, parts.timers)
        if parts.sides.unmapped:
            calls = _window_calls(parts, workers, stage.remote.environment, self._operation.name_context.step_name)
            for channel, known in parts.sides.unmapped.items():
                parts.sides.map_by(channel, calls.mapping(channel, *known))

    def begin_samples(self) -> None:
        """Take samples in the following tasks, until `end_samples`."""
        stage, read = self.parts.processor.stage, self.parts.processor.root.name_context.step_name
        assert stage.remote is not None
        if read.startswith(stage.remote.source.pcoll):
            # The pipeline has no name for it: an exchange that no transform of the user's has asked for.
            read = f"input of {stage.transforms[0].name}"
        self._samples = CollectionSamples(stage, self._made, read)
        self._operation.sample(self._samples)

    def end_samples(self) -> None:
        """Take no more samples."""
        self._samples = None
        self._operation.sample(None)

    @override
    def samples(self) -> list[dict[str, Any]]:
        return [] if self._samples is None else self._samples.taken()

    def _lot_of(self, pcoll: str) -> KeyBatch:
        pair = self._made.coders[self._made.pcollections[pcoll].coder_id]
        coder = self.parts.processor.root.written_coder.wrapped_value_coder.key_coder()
        return KeyBatch(coder, self._made.coders, pair.component_coder_ids[0])

    @override
    def runner(self, view: StateView, placed: StagePlacement, clock: TaskClock) -> RemoteRunner:
        # SUBTLE: an attempt before this one may have changed state in the worker's cache, and not have been committed.
        self._operation.forget_caches()
        return RemoteRunner(self.parts, view, placed, clock, self.restrictions, self._key_batch, self._groups)

    @override
    def running_step(self, frame: FrameType | None) -> str:
        return self._operation.running_step

    @override
    def abandon(self) -> None:
        self._operation.give_up()
