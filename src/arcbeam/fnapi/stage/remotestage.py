"""A stage of an unbounded pipeline whose transforms run in an SDK worker.

The task's process has the stage's data path and state, as for embedded Python.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from typing_extensions import override

from arcbeam.engine.protocol.layout import Placed
from arcbeam.engine.protocol.stagekinds import Grouped
from arcbeam.fnapi.descriptors import descriptor, with_paged_groups
from arcbeam.fnapi.environments.workers import workers_here
from arcbeam.fnapi.service.connection import Connection
from arcbeam.fnapi.service.provision import Provision
from arcbeam.fnapi.service.server import server_here
from arcbeam.fnapi.stage import remoteoperation
from arcbeam.fnapi.stage.collectionsamples import CollectionSamples
from arcbeam.fnapi.stage.encodedgroups import EncodedGroups
from arcbeam.fnapi.stage.lot import Lot
from arcbeam.fnapi.stage.remoteoperation import RemoteOperation
from arcbeam.fnapi.stage.remoterestrictions import RemoteRestrictions
from arcbeam.fnapi.stage.remoterunner import RemoteRunner
from arcbeam.fnapi.stage.staterequests import StateRequests
from arcbeam.fnapi.stage.windowcalls import WindowCalls
from arcbeam.harness.operations.taskcontext import Settings
from arcbeam.harness.streaming.clocks import TaskClock
from arcbeam.harness.streaming.streamingstage import StreamingStage
from arcbeam.model.attempts import IN_SDK_WORKER
from arcbeam.model.interfaces import StateView
from arcbeam.model.plan import Stage
from arcbeam.model.rows import BundleReport
from arcbeam.model.urns import INTERVAL_WINDOW_URN

remoteoperation.register()


class MergingStage(StreamingStage):
    """A stage without user code, whose windows are merged in an SDK worker.

    Args:
        stage: the stage to run.
        settings: the job's settings.
        job: id of the job. Its stages share workers.
        provision: what its workers get before they start.
        sampled: see `StreamingStage`.

    Raises:
        SdkWorkerLostError: there is no worker.
    """

    def __init__(
        self,
        stage: Stage,
        settings: Settings,
        job: str,
        provision: Provision = Provision(),  # noqa: B008
        *,
        sampled: bool = False,
    ) -> None:
        super().__init__(stage, settings, sampled=sampled)
        self._job, self._provision = job, provision
        self._acquired: list[tuple[bytes, Connection]] = []
        self._components = runner_pb.Components.FromString(stage.payload)
        try:
            self._begin(stage)
        except BaseException:
            # SUBTLE: no caller gets this stage. Its first worker may run, and the second one not start.
            self.close()
            raise

    def _begin(self, stage: Stage) -> None:
        """Start the workers."""
        windows = self.parts.processor.root.windowing.windowfn
        if stage.merges_in_worker:
            environment = self._components.environments[windows.strategy.environment_id]
            step = self.parts.processor.root.name_context.step_name.removesuffix("/Read")
            calls = self._calls(environment.SerializeToString(deterministic=True), step)
            windows.merged = calls.merging(windows.strategy)

    @property
    def environments(self) -> list[bytes]:
        """The serialized environments of its workers."""
        return [environment for environment, _ in self._acquired]

    def _worker_of(self, environment: bytes) -> Connection:
        worker = workers_here.acquire(self._job, environment, self._provision)
        self._acquired.append((environment, worker))
        return worker

    def _calls(self, environment: bytes, step: str) -> WindowCalls:
        worker, id = self._worker_of(environment), f"{self._job}/{self.parts.processor.stage.uid}"
        coders = self._components.coders
        for coder in coders.values():
            if coder.spec.urn == INTERVAL_WINDOW_URN:
                coder.spec.urn = common_urns.coders.INTERVAL_WINDOW.urn
        return WindowCalls(worker, id, coders, server_here().address, step, partial(self._serve, worker))

    def _serve(self, worker: Connection, until: Callable[[], bool]) -> None:
        """Serve the open bundle in a worker; see `calls.Serve`. There is none here."""

    @override
    def end(self, report: BundleReport, *, late: int, closed: int) -> None:
        super().end(report, late=late, closed=closed)
        report.needs_teardown = True

    @override
    def needs_teardown(self) -> bool:
        return True

    @override
    def close(self) -> list[str]:
        errors = super().close()
        for environment, worker in self._acquired:
            workers_here.release(self._job, environment, worker)
        return errors


class RemoteStage(MergingStage):
    """One stage, ready to run micro-batches; see `TaskStage`.

    Args:
        stage: the stage to run; it has a part for a worker.
        settings, job, provision: see `MergingStage`.

    Raises:
        SdkWorkerLostError: there is no worker.
    """

    @override
    def _begin(self, stage: Stage) -> None:
        super()._begin(stage)
        assert stage.remote is not None
        self._remote: RemoteOperation = next(
            op for op in self.parts.processor.sdk.ops.values() if isinstance(op, RemoteOperation)
        )
        self._worker = self._worker_of(stage.remote.environment)
        made = descriptor(f"{IN_SDK_WORKER}{self._job}/{stage.uid}", stage.remote, server_here().address)
        self._lot = self._lot_of(stage.remote.source.pcoll, made) if stage.stateful else None
        requests = StateRequests(stage, self.parts.state, self._lot)
        self._made = made
        self._samples: CollectionSamples | None = None
        paged = isinstance(self.parts.kind, Grouped) and with_paged_groups(made, stage.remote)
        callbacks = self.parts.processor.bundles.callbacks
        self._remote.connect(self._worker, stage.remote, made, requests, callbacks.add)
        self._groups: EncodedGroups | None = None
        if isinstance(self.parts.kind, Grouped):
            self._groups = EncodedGroups.of(self._remote.input_coder, self.parts)
        if paged:
            self._remote.page_groups(self.parts.processor.root.written_coder.wrapped_value_coder.value_coder())
        if stage.splittable:
            self.parts.restrictions = RemoteRestrictions(
                stage, self.parts.processor, self._remote, self._worker, made, requests
            )
        if self._lot is not None:
            self._remote.keys_are(self._lot, self.parts.timers)

        if self.parts.sides.unmapped:
            calls = self._calls(stage.remote.environment, self._remote.name_context.step_name)
            for channel, known in self.parts.sides.unmapped.items():
                self.parts.sides.map_by(channel, calls.mapping(channel, *known))

    @override
    def _serve(self, worker: Connection, until: Callable[[], bool]) -> None:
        if worker is self._worker:
            self._remote.serve(until)

    def begin_samples(self) -> None:
        """Take samples in the following tasks, until `end_samples`."""
        stage, read = self.parts.processor.stage, self.parts.processor.root.name_context.step_name
        assert stage.remote is not None
        if read.startswith(stage.remote.source.pcoll):
            # The pipeline has no name for it: an exchange that no transform of the user's has asked for.
            read = f"input of {stage.transforms[0].name}"
        self._samples = CollectionSamples(stage, self._made, read)
        self._remote.sample(self._samples)

    def end_samples(self) -> None:
        """Take no more samples."""
        self._samples = None
        self._remote.sample(None)

    @override
    def samples(self) -> list[dict[str, Any]]:
        return [] if self._samples is None else self._samples.taken()

    def _lot_of(self, pcoll: str, descriptor: Any) -> Lot:
        pair = descriptor.coders[descriptor.pcollections[pcoll].coder_id]
        coder = self.parts.processor.root.written_coder.wrapped_value_coder.key_coder()
        return Lot(coder, descriptor.coders, pair.component_coder_ids[0])

    @override
    def runner(self, view: StateView, placed: Placed) -> RemoteRunner:
        return self.runner_by(view, placed, self._clock)

    def runner_by(self, view: StateView, placed: Placed, clock: TaskClock) -> RemoteRunner:
        """Return the same, by another clock."""
        # SUBTLE: an attempt before this one may have changed state in the worker's cache, and not have been committed.
        self._remote.forget_caches()
        return RemoteRunner(self.parts, view, placed, clock, self._lot, self._groups)

    @override
    def running_step(self, frame: FrameType | None = None) -> str:
        return self._remote.running_step

    @override
    def abandon(self) -> None:
        self._remote.give_up()
        super().abandon()
