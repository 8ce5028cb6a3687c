"""A stage of an unbounded pipeline whose transforms run in an SDK worker.

The task's process has the stage's data path and state, as for embedded Python. Implements
`arcbeam.streaming.interfaces.TaskStage`, which it must not import: it is in a layer above.
"""

from __future__ import annotations

from types import FrameType
from typing import Any

from typing_extensions import override

from arcbeam.engine.protocol.layout import Placed
from arcbeam.engine.protocol.stagekinds import Grouped
from arcbeam.fnapi.descriptors import descriptor, with_paged_groups
from arcbeam.fnapi.environments.workers import workers_here
from arcbeam.fnapi.service.provision import Provision
from arcbeam.fnapi.service.server import server_here
from arcbeam.fnapi.stage import remoteoperation
from arcbeam.fnapi.stage.lot import Lot
from arcbeam.fnapi.stage.remoteoperation import RemoteOperation
from arcbeam.fnapi.stage.remoterestrictions import RemoteRestrictions
from arcbeam.fnapi.stage.remoterunner import RemoteRunner
from arcbeam.fnapi.stage.staterequests import StateRequests
from arcbeam.harness.operations.taskcontext import Settings
from arcbeam.harness.streaming.clocks import TaskClock
from arcbeam.harness.streaming.streamingstage import StreamingStage
from arcbeam.model.interfaces import StateView
from arcbeam.model.plan import Stage
from arcbeam.model.rows import BundleReport

remoteoperation.register()


class RemoteStage(StreamingStage):
    """One stage, ready to run micro-batches; see `TaskStage`.

    Args:
        stage: the stage to run; it has a part for a worker.
        settings: the job's settings.
        job: id of the job. Its stages share a worker.
        provision: what its workers get before they start.

    Raises:
        SdkWorkerLostError: there is no worker.
    """

    def __init__(self, stage: Stage, settings: Settings, job: str, provision: Provision = Provision()) -> None:  # noqa: B008
        super().__init__(stage, settings)
        assert stage.remote is not None
        self._job, self._environment = job, stage.remote.environment
        self._remote: RemoteOperation = next(
            op for op in self.parts.processor.sdk.ops.values() if isinstance(op, RemoteOperation)
        )
        self._worker = workers_here.acquire(job, self._environment, provision)
        made = descriptor(f"{job}/{stage.uid}", stage.remote, server_here().address)
        self._lot = self._lot_of(stage.remote.source.pcoll, made) if stage.stateful else None
        requests = StateRequests(stage, self.parts.state, self._lot)
        paged = isinstance(self.parts.kind, Grouped) and with_paged_groups(made, stage.remote)
        callbacks = self.parts.processor.bundles.callbacks
        self._remote.connect(self._worker, stage.remote, made, requests, callbacks.add)
        if paged:
            self._remote.page_groups(self.parts.processor.root.written_coder.wrapped_value_coder.value_coder())
        if stage.splittable:
            self.parts.restrictions = RemoteRestrictions(
                stage, self.parts.processor, self._remote, self._worker, made, requests
            )
        if self._lot is not None:
            self._remote.keys_are(self._lot, self.parts.timers)

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
        return RemoteRunner(self.parts, view, placed, clock, self._lot)

    @override
    def end(self, report: BundleReport, *, late: int, closed: int) -> None:
        super().end(report, late=late, closed=closed)
        report.needs_teardown = True

    @override
    def needs_teardown(self) -> bool:
        return True

    @override
    def running_step(self, frame: FrameType | None = None) -> str:
        return str(self._remote.name_context.step_name)

    @override
    def abandon(self) -> None:
        self._remote.give_up()
        super().abandon()

    @override
    def close(self) -> list[str]:
        errors = super().close()
        workers_here.release(self._job, self._environment, self._worker)
        return errors
