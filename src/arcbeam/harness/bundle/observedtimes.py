"""Transforms that observe event times: the operation, and which transforms use it.

Owns what is observed: the latest accepted time. Must not know how watermarks are computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from apache_beam.internal import pickler
from apache_beam.metrics import Metrics
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.runners import common
from apache_beam.runners.worker import bundle_processor, operation_specs
from apache_beam.transforms import core
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.timestamp import Timestamp as SdkTimestamp

from arcbeam.engine.watermarks.outlierfilter import without_outliers
from arcbeam.engine.watermarks.sketches import sketched
from arcbeam.harness.encoding.blocks import Block, Each
from arcbeam.harness.operations.blockoperation import BlockOperation
from arcbeam.harness.transforms.outputs import micros_of
from arcbeam.model.observers import ANNOTATION, Observing, observer_name
from arcbeam.model.timestamps import Timestamp
from arcbeam.sizes import threshold

_URN = "arcbeam:transform:observe:v1"
_SKETCHED = threshold(4096)
"""Times that are added to a sketch together."""
_REJECTED = Metrics.counter("arcbeam", "rejectedEventTimes")
"""Elements whose times were too far ahead of the clock to be accepted."""


class ObservingOperation(BlockOperation):
    """Sets the event times of elements, and records the latest.

    Attributes:
        name: the observer's name.
        watched: whether the observations are used. On a bounded input they are not.
    """

    def __init__(self, name: Any, spec: Any, factory: Any, input_coder: Any, fn: Any, observing: Observing) -> None:
        super().__init__(name, spec, factory, input_coder)
        self.name = observer_name(name.transform_id)
        self.watched = False
        self._fn = fn
        self._sees = observing.shared is None
        self._max_skew, self._quantile = observing.max_skew, observing.quantile
        self._max_jump, self._others = observing.max_jump, observing.confirmed_by
        self._latest: int | None = None
        self._unconfirmed: tuple[int, ...] = ()
        self._sketch, self._waiting_times = b"", list[int]()

    def setup(self, data_sampler: Any = None) -> None:
        """See the SDK's `Operation`."""
        super().setup(data_sampler)
        # Its errors name the transform in which user code failed.
        name, windowing = self.name_context.logging_name(), core.Windowing(GlobalWindows())
        self._runner = common.DoFnRunner(core.DoFn(), (), {}, [], windowing, {None: self.receivers[0]}, step_name=name)

    def take_latest(self) -> Timestamp | None:
        """Return the latest accepted time since the last call; None if there was none."""
        latest, self._latest = self._latest, None
        return None if latest is None else Timestamp(latest)

    def take_unconfirmed(self) -> tuple[Timestamp, ...]:
        """Return later times since the last call that are not confirmed by the times seen here alone."""
        unconfirmed, self._unconfirmed = self._unconfirmed, ()
        return tuple(map(Timestamp, unconfirmed))

    def take_sketch(self) -> bytes:
        """Return a sketch of the times since the last call; b"" if there were none."""
        self._close_sketch()
        sketch, self._sketch = self._sketch, b""
        return sketch

    def _close_sketch(self) -> None:
        if self._waiting_times:
            self._sketch = sketched(self._waiting_times, self._sketch)
            self._waiting_times = []

    def _take(self, block: Block) -> None:
        with self.scoped_process_state:
            try:
                times = self._fn.times_of(block.values, micros_of)
                if times is not None:
                    block = Block(block.values, Each(times), block.windows, block.panes)
                if self.watched and self._sees:
                    times = block.micros if type(block.micros) is Each else (block.micros,)
                    self._see(times if self._quantile is None else [*times] * (len(block) // len(times)), len(block))
                self._outputs[0].emit(block)
            except BaseException as e:
                self._runner._reraise_augmented(e)

    def _see(self, times: Sequence[int], count: int) -> None:
        latest = max(times)
        if self._max_skew is not None:
            end = SdkTimestamp.now().micros + self._max_skew
            if latest > end:
                near = [time for time in times if time <= end]
                _REJECTED.inc(len(times) - len(near) if len(times) == count else count)
                if not near:
                    return
                times, latest = near, max(near)
        if self._quantile is not None:
            self._waiting_times += times
            if len(self._waiting_times) > _SKETCHED:
                self._close_sketch()
            return
        if self._max_jump is not None and (self._latest is None or latest > self._latest + self._max_jump):
            seen = {*self._unconfirmed, *times}
            self._latest, self._unconfirmed = without_outliers(self._latest, seen, self._max_jump, self._others)
        elif self._latest is None or latest > self._latest:
            self._latest = latest


def claim(transform: Any) -> None:
    """Mark a transform that observes event times for our operation. The SDK's operation would not observe them."""
    if ANNOTATION in transform.annotations:
        transform.spec.urn = _URN


def unconfirmed(observers: Iterable[ObservingOperation]) -> dict[str, tuple[Timestamp, ...]]:
    """Return, for each observer, later times since the last call that are not confirmed."""
    return {op.name: times for op in observers if (times := op.take_unconfirmed())}


def sketches(observers: Iterable[ObservingOperation]) -> dict[str, bytes]:
    """Return, for each observer that uses a quantile, a sketch of the times since the last call."""
    return {op.name: sketch for op in observers if (sketch := op.take_sketch())}


def seen(observers: Iterable[ObservingOperation]) -> dict[str, Timestamp]:
    """Return, for each observer, the latest accepted time since the last call."""
    return {op.name: latest for op in observers if (latest := op.take_latest()) is not None}


def _create(factory: Any, transform_id: str, transform: Any, payload: Any, consumers: Any) -> Any:
    (pcoll,) = transform.inputs.values()
    serialized = core.DoFnInfo.from_runner_api(payload.do_fn, factory.context).serialized_dofn_data()
    fn, *_ = pickler.loads(serialized)
    spec = operation_specs.WorkerFlatten(None, [factory.get_only_output_coder(transform)])
    name = common.NameContext(transform.unique_name, transform_id)
    observing = Observing.from_bytes(transform.annotations[ANNOTATION])
    op = ObservingOperation(name, spec, factory, factory.get_windowed_coder(pcoll), fn, observing)
    return factory.augment_oldstyle_op(op, transform.unique_name, consumers)


def register() -> None:
    """Register our operation in the SDK's factory. Idempotent."""
    bundle_processor.BeamTransformFactory.register_urn(_URN, runner_pb.ParDoPayload)(_create)
