"""Restrictions of a stage whose splittable DoFn runs in an SDK worker: processed, checkpointed and truncated there.

Owns when the worker is asked for a checkpoint, and what it returns. The engine decides which restriction runs when.

A restriction is a windowed `((element, (restriction, estimator state)), size)` as the worker reads and writes it. The
runner only reads the size, which is at the end.
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Callable
from typing import Any, Final

from apache_beam.metrics import monitoring_infos
from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_fn_api_pb2 as fn_pb
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from typing_extensions import override

from arcbeam.engine.state.residuals import Remainder
from arcbeam.engine.task.bundles import Budget, RestrictionResult
from arcbeam.fnapi.descriptors import SOURCE, process_of, truncation
from arcbeam.fnapi.lost import SdkWorkerLostError
from arcbeam.fnapi.service.connection import Connection
from arcbeam.fnapi.stage.calls import Calls
from arcbeam.fnapi.stage.remoteoperation import RemoteOperation
from arcbeam.fnapi.stage.staterequests import StateRequests
from arcbeam.fnapi.stage.workererrors import error_in
from arcbeam.harness.bundle.processor import StageProcessor
from arcbeam.harness.bundle.splitting import PIECES_MAX
from arcbeam.harness.streaming.restrictions import (
    PATIENCE_SECONDS,
    StageRestrictions,
    due_of,
    promised,
    result_of,
    watermarks_at_first,
)
from arcbeam.model.plan import Stage
from arcbeam.model.timestamps import Timestamp

_LOG = logging.getLogger("arcbeam.splitting")
_CHECK_SECONDS: Final = 0.01
"""Seconds between two checks of the running restriction."""
_CHECKPOINT_SECONDS_MAX: Final = 5.0
"""Seconds between two requests for a checkpoint, at most."""
_NUDGES: Final = (0.0, 1 / 64, 1 / 8, 1 / 2)
"""Fractions of the rest to keep, tried in this order: not every tracker can stop exactly at its position."""
_SIZE: Final = struct.Struct(">d")
_TRUNCATES: Final = common_urns.sdf_components.TRUNCATE_SIZED_RESTRICTION.urn
_WORK: Final = (monitoring_infos.WORK_COMPLETED_URN, monitoring_infos.WORK_REMAINING_URN)


class RemoteRestrictions(StageRestrictions):
    """The restrictions of a stage.

    Args:
        stage: the stage; it has a part for a worker.
        processor: the stage's processor.
        operation: represents the worker's transforms.
        worker: the worker.
        made: the `ProcessBundleDescriptor` of the stage.
        requests: answers the worker's requests for side inputs.
    """

    def __init__(
        self,
        stage: Stage,
        processor: StageProcessor,
        operation: RemoteOperation,
        worker: Connection,
        made: Any,
        requests: StateRequests,
    ) -> None:
        assert stage.remote is not None
        self._processor, self._operation, self._requests = processor, operation, requests
        self._root, process = process_of(made)
        self._step = process.unique_name.removesuffix("/Process")
        self._outputs = dict(process.outputs)
        sides = {side.tag for side in stage.side_inputs if side.transform == self._root}
        # Not every SDK names it: there is only one.
        self._inputs = {"", *process.inputs} - sides
        self.endless = any(
            made.pcollections[pcoll].is_bounded == runner_pb.IsBounded.UNBOUNDED for pcoll in self._outputs.values()
        )
        environment = runner_pb.Environment.FromString(stage.remote.environment)
        self._truncation: Calls | None = None
        if _TRUNCATES in environment.capabilities:
            port = fn_pb.RemoteGrpcPort.FromString(made.transforms[SOURCE].spec.payload)
            truncates = truncation(f"{made.id}/truncate", stage.remote, port.api_service_descriptor.url)
            self._truncation = Calls(worker, truncates, self._step, operation.serve, requests.answer)

    @override
    def admitted(self, element: Any, outputs: tuple[str, ...]) -> Remainder:
        encoded, watermarks = self._operation.encoded(element), watermarks_at_first(element, outputs)
        return Remainder(encoded, element.value[1], None, watermarks)

    @override
    def resume(
        self,
        remainder: Remainder,
        budget: Budget,
        pieces: int,
        outputs: tuple[str, ...],
        clock: Callable[[], Timestamp],
    ) -> RestrictionResult:
        # A restriction is a bundle of its own.
        bundles, operation = self._processor.bundles, self._operation
        bundles.close()
        bundles.open()
        operation.take_encoded(remainder.element)
        running = _Running(self._step, operation, budget, 1 if self.endless else min(pieces, PIECES_MAX), self)
        operation.complete(running.look, _CHECK_SECONDS)
        response = operation.response
        made = self.made(operation.infos(response))
        bundles.elements += 1
        bundles.close()
        splits = [self._left(each, outputs, None) for each in running.residuals]
        if running.is_untouched:
            splits.append(remainder)
        deferred = [self._left(each, outputs, clock) for each in response.residual_roots]
        return result_of(splits, deferred, made, self._processor.stage)

    def made(self, infos: list[Any]) -> int:
        """Return how many elements the DoFn has output, from the metrics of a bundle."""
        counts = (
            monitoring_infos.extract_counter_value(info)
            for info in infos
            if info.urn == monitoring_infos.ELEMENT_COUNT_URN
            and info.labels.get(monitoring_infos.PCOLLECTION_LABEL) in self._outputs.values()
        )
        return sum(counts)

    def _left(self, application: Any, outputs: tuple[str, ...], clock: Callable[[], Timestamp] | None) -> Remainder:
        element, left = application.application.element, application.application
        if left.transform_id != self._root:
            # Only the transform that reads a restriction can resume it.
            raise SdkWorkerLostError(
                f"the SDK worker has returned a restriction of {left.transform_id!r}, which was given to {self._root!r}"
            )
        if left.input_id not in self._inputs:
            raise SdkWorkerLostError(
                f"the SDK worker has returned a restriction for the input {left.input_id!r} of {self._root!r}, "
                f"which came from another one"
            )
        # An output that is not reported may get anything.
        all_reported = left.output_watermarks.keys() >= self._outputs.keys()
        watermarks = promised(left, outputs) if all_reported else {}
        return Remainder(element, _size_in(element), due_of(application, clock), watermarks)

    @override
    def truncate(self, remainder: Remainder) -> Remainder | None:
        # An SDK that cannot truncate keeps what is bounded.
        if self._truncation is None:
            return None if self.endless else remainder
        self._requests.begin()
        kept = self._truncation(remainder.element)
        return Remainder(kept, _size_in(kept), None, remainder.watermarks) if kept else None

    @override
    def about(self) -> str:
        return ""  # only the worker can read restrictions

    @override
    def close(self) -> None:
        pass


class _Running:
    """A restriction that the worker processes.

    After the end of the budget, the worker is asked to return what is not claimed. SUBTLE: not before it has made
    progress: before its first claim, a split may return the whole restriction as residual, forever.

    Args:
        step: name of the transform.
        operation: represents the worker's transforms.
        budget: of the task.
        pieces: into how many parts the rest is split.
        restrictions: of the stage.

    Attributes:
        residuals: what was split off: `DelayedBundleApplication`s.
        is_untouched: whether the worker has returned the whole restriction.
    """

    def __init__(
        self, step: str, operation: RemoteOperation, budget: Budget, pieces: int, restrictions: RemoteRestrictions
    ) -> None:
        self._step, self._operation, self._budget, self._restrictions = step, operation, budget, restrictions
        self._pieces = pieces
        self.residuals: list[Any] = []
        self.is_untouched = False
        self._first: dict[str, bytes] | None = None
        self._progressed = self._refuses = False
        self._next_try, self._wait = 0.0, _CHECK_SECONDS
        self._overdue_since: float | None = None
        self._warn_after = PATIENCE_SECONDS

    def look(self) -> None:
        """Check the budget, and ask for a checkpoint after its end."""
        if self._operation.response is not None or not self._budget.exhausted():
            return
        now = time.monotonic()
        if self._overdue_since is None:
            self._overdue_since = now
        if not self._refuses and now >= self._next_try:
            self._progressed = self._progressed or self._has_progressed()
            if self._progressed:
                self._take_the_rest()
            self._next_try = time.monotonic() + self._wait
            self._wait = min(2 * self._wait, _CHECKPOINT_SECONDS_MAX)
        if now - self._overdue_since >= self._warn_after:
            self._warn_after *= 2
            why = "cannot be stopped" if self._progressed else "shows no progress"
            _LOG.warning(
                "%r has exceeded its time for a restriction by %.0f s and %s. Everything that depends on it waits "
                "until it returns",
                self._step,
                now - self._overdue_since,
                why,
            )

    def _has_progressed(self) -> bool:
        operation, request = self._operation, fn_pb.ProcessBundleProgressRequest()
        # SUBTLE: not so for a split, whose response may have a part of the restriction.
        answer = operation.ask(lambda: operation.response is not None, process_bundle_progress=request)
        if answer is None:
            return False
        if answer.error:
            # A tracker need not know its progress. It was running for the whole budget.
            return True
        infos = self._operation.infos(answer.process_bundle_progress)
        if self._restrictions.made(infos):
            return True
        work = {info.urn: info.payload for info in infos if info.urn in _WORK}
        if self._first is None:
            self._first = work
        return work != self._first

    def _take_the_rest(self) -> None:
        """Split the rest into equal pieces, and stop the running process after what it has claimed."""
        pieces, self._pieces = self._pieces, 1
        for count in range(pieces, 1, -1):
            if not self._split((count - 1) / count):
                break
        kept = next((fraction for fraction in _NUDGES if self._split(fraction)), None)
        # After a split at 0 there is nothing left to split off.
        self._refuses = self._refuses or kept == 0.0

    def _split(self, fraction: float) -> bool:
        """Request one split; return False if the restriction cannot be split there, or is done."""
        if self._refuses or self._operation.response is not None:
            return False
        request = fn_pb.ProcessBundleSplitRequest()
        request.desired_splits[SOURCE].fraction_of_remainder = fraction
        request.desired_splits[SOURCE].estimated_input_elements = 1
        answer = self._operation.ask(process_bundle_split=request)
        if answer.error:
            if "NotImplementedError" in answer.error:
                self._refuses = True
                return False
            # A part of the restriction may be lost.
            self._operation.await_own_error()
            raise error_in(answer.error, self._step, self._operation.names)
        split = answer.process_bundle_split
        self.residuals += split.residual_roots
        self.is_untouched = self.is_untouched or _returns_all(split)
        self._refuses = self._refuses or self.is_untouched
        return bool(split.residual_roots) or self.is_untouched


def _returns_all(split: Any) -> bool:
    """Return whether the worker returns the only element of the bundle as it was.

    Raises:
        SdkWorkerLostError: a split has lost the element, or has left it to the worker and to the runner.
    """
    returned = False
    for channel in split.channel_splits:
        last, first = channel.last_primary_element, channel.first_residual_element
        returns = first <= 0
        lost = last < 0 < first and not (split.primary_roots or split.residual_roots)
        if lost or (returns and (last >= 0 or split.residual_roots)):
            raise SdkWorkerLostError(
                f"the SDK worker has split a bundle of one restriction between {last} and {first}, "
                f"with {len(split.residual_roots)} residuals"
            )
        returned = returned or returns
    return returned


def _size_in(element: bytes) -> float:
    if len(element) < _SIZE.size:
        raise SdkWorkerLostError(f"the SDK worker has returned a restriction of {len(element)} bytes, without a size")
    size: float = _SIZE.unpack(element[-_SIZE.size :])[0]
    return size
