"""The operation of a splittable DoFn that emits its outputs in blocks, and the choice of DoFns that use it.

Owns the code between the SDK's invoker of a DoFn and the blocks of outputs. A `process` that yields runs for many
elements before the first of them is emitted, as long as no other code can notice. The operation replaces the SDK's
`SdfProcessSizedElements`, which emits elements one by one. DoFns that need features of the SDK's operation (batches,
type checks at run time) keep it. Which restriction is processed when, and what happens to the rest, is decided in
`harness.bundle.splittable`. A contract test covers the SDK internals that this module relies on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from inspect import isgeneratorfunction
from typing import Any

from apache_beam.io.watermark_estimators import ManualWatermarkEstimator, WalltimeWatermarkEstimator
from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.pvalue import TaggedOutput
from apache_beam.runners import common, sdf_utils
from apache_beam.runners.worker import bundle_processor, operations
from apache_beam.transforms import core
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.windowed_value import WindowedValue

from arcbeam.harness.encoding.blocks import Block
from arcbeam.harness.files import recordlists
from arcbeam.harness.operations.blockoperation import BlockOperation, count_infos, dofn_runner
from arcbeam.harness.transforms.emitting import Emitter
from arcbeam.harness.transforms.values import ExtraArguments
from arcbeam.harness.transforms.vectorization import create_par_do, has_batches, hide_side_inputs

_SDK_URN = common_urns.sdf_components.PROCESS_SIZED_ELEMENTS_AND_RESTRICTIONS.urn
_URN = "arcbeam:transform:restrictions:v1"

_BLIND = frozenset(
    kind.observe_timestamp.__code__
    for kind in (
        ManualWatermarkEstimator,
        WalltimeWatermarkEstimator,
        # Each call creates a class of its own.
        type(sdf_utils.NoOpWatermarkEstimatorProvider().create_watermark_estimator(None)),
    )
)
"""Code of the SDK's estimators that do not observe the times of outputs."""


class RestrictionOperation(BlockOperation):
    """Processes restrictions: `((element, (restriction, estimator state)), size)`, one after the other.

    All outputs of a `process` are emitted when it returns, and also when it raises.

    Args:
        name, spec, factory: see the SDK's `Operation`.
        input_coder: coder of the main input's windowed values.
        fn: the DoFn.
        given: its arguments besides the element.

    Attributes:
        input_coder: the same.
        input_info: what the SDK needs to create a `DelayedBundleApplication` of a residual.
    """

    def __init__(self, name: Any, spec: Any, factory: Any, input_coder: Any, fn: Any, given: ExtraArguments) -> None:
        super().__init__(name, spec, factory, input_coder)
        self._fn, self._given = fn, given
        self.input_coder = input_coder
        self.input_info: Any = None
        # The following attributes are also read by the thread that requests progress.
        self._lock = threading.Lock()
        self._bytes_before: int | None = None

    @property
    def fn(self) -> Any:
        """The DoFn."""
        return self._fn

    def setup(self, data_sampler: Any = None) -> None:
        """See the SDK's `Operation`."""
        with self.scoped_start_state:
            super().setup(data_sampler)
            fn, given, tags, step = self._fn, self._given, self.spec.output_tags, self.name_context.logging_name()
            main = tags.index("None") if len(tags) > 1 and "None" in tags else 0
            receivers = operations._TaggedReceivers(self.counter_factory, step)
            receivers.update(zip(tags, self.receivers, strict=True))
            receivers[None] = self.receivers[main]
            self._tagged_receivers = receivers
            # If a DoFn is not a generator, the SDK checks what it returns for its first element.
            looks = not isgeneratorfunction(fn.process)
            windowfn = given.windowing.windowfn
            outputs = windowfn, receivers[None], receivers, None, None, False, False
            one_by_one = common._OutputHandler(*outputs)
            self._emitter = Emitter(
                self._outputs[main],
                one_by_one.handle_process_outputs,
                windowfn,
                self.spec.output_coders[main],
                time.monotonic,
            )
            first = common._OutputHandler(*outputs, True) if looks else None
            state = common.DoFnState(self.counter_factory)
            state.step_name = step
            self._finalizer = core.DoFn.BundleFinalizerParam()
            self._invoker = common.DoFnInvoker.create_invoker(
                common.DoFnSignature(fn),
                _Outputs(self._emitter, one_by_one, first),
                common.DoFnContext(step, state=state),
                given.sides,
                given.args,
                given.kwargs,
                bundle_finalizer_param=self._finalizer,
            )
            # It adds the transform's name to errors outside of `process`. The DoFn in it is a dummy.
            self._runner = dofn_runner(self, core.DoFn(), (), {}, [], given.windowing, receivers)
            self._runner._invoke_lifecycle_method(self._invoker.invoke_setup)

    def start(self) -> None:
        """See the SDK's `Operation`."""
        with self.scoped_start_state:
            super().start()
            self._emitter.begin()
            self._runner._invoke_bundle_method(self._invoker.invoke_start_bundle)

    def process(self, o: Any) -> None:
        """Process a restriction at once, without collecting a block."""
        receivers = self._tagged_receivers
        (element, (restriction, estimator_state)), _ = o.value
        with self.scoped_process_state:
            try:
                with self._lock:
                    self._bytes_before = receivers.total_output_bytes()
                    for receiver in receivers.values():
                        receiver.opcounter.restart_sampling()
                # Not under the lock: it may take long.
                deferred = self._invoker.invoke_process(
                    o.with_value(element), restriction=restriction, watermark_estimator_state=estimator_state
                )
                self.execution_context.delayed_applications += [(self, residual) for residual in deferred]
            finally:
                with self._lock:
                    self._bytes_before = None

    def _take(self, block: Block) -> None:
        for element in block.elements():
            self.process(element)

    def finish(self) -> None:
        """See the SDK's `Operation`."""
        super().finish()
        with self.scoped_finish_state:
            self._runner._invoke_bundle_method(self._invoker.invoke_finish_bundle)

    def teardown(self) -> None:
        """See the SDK's `Operation`."""
        with self.scoped_finish_state:
            self._runner._invoke_lifecycle_method(self._invoker.invoke_teardown)

    def reset(self) -> None:
        """See the SDK's `Operation`."""
        super().reset()
        for side in self._given.sides:
            side.reset()
        self._finalizer.reset()

    def needs_finalization(self) -> bool:
        """See the SDK's `DoOperation`."""
        return bool(self._finalizer.has_callbacks())

    def finalize_bundle(self) -> None:
        """See the SDK's `DoOperation`."""
        self._finalizer.finalize_bundle()

    # Called on another thread while a restriction is processed.

    def outputs(self) -> int:
        """Return how many elements `process` has output, in all bundles, whether they were emitted or not."""
        return self._emitter.taken

    def try_split(self, fraction_of_remainder: float) -> Any:
        """See the SDK's `Operation`."""
        split = self._invoker.try_split(fraction_of_remainder)
        if not split:
            return None
        primaries, residuals = split
        return [(self, primary) for primary in primaries], [(self, residual) for residual in residuals]

    def current_element_progress(self) -> Any:
        """See the SDK's `Operation`."""
        with self._lock:
            if self._bytes_before is None:
                return None
            progress = self._invoker.current_element_progress()
            if progress is None:
                return None
            return progress.with_completed(self._tagged_receivers.total_output_bytes() - self._bytes_before)

    def pcollection_count_monitoring_infos(self, tag_to_pcollection_id: Any) -> dict[Any, Any]:
        """See the SDK's `DoOperation`."""
        infos: dict[Any, Any] = super().pcollection_count_monitoring_infos(tag_to_pcollection_id)
        return infos | count_infos(self._tagged_receivers, tag_to_pcollection_id)


class _Outputs(common.OutputHandler):  # type: ignore[misc]  # Beam is untyped
    """The output handler of the SDK's invoker.

    Args:
        emitter: builds blocks of the main output.
        one_by_one: the SDK's handler, for the outputs of start_bundle and finish_bundle.
        first: an SDK handler that rejects invalid return values, used once. None if that check is not needed.
    """

    def __init__(self, emitter: Emitter, one_by_one: Any, first: Any) -> None:
        self._emitter, self._first = emitter, first
        self.start_bundle_outputs = one_by_one.start_bundle_outputs
        self.finish_bundle_outputs = one_by_one.finish_bundle_outputs

    def handle_process_outputs(
        self, windowed_input_element: Any, results: Any, watermark_estimator: Any = None
    ) -> None:
        """See the SDK's `OutputHandler`."""
        first, self._first = self._first, None
        if first is not None and isinstance(results, str | bytes | dict):
            first.handle_process_outputs(windowed_input_element, results)
        if results is None:
            return
        if watermark_estimator is not None and _observes(watermark_estimator):
            results = _observed(results, windowed_input_element.timestamp, watermark_estimator.observe_timestamp)
        element, emitter = windowed_input_element, self._emitter
        emitter.stamp(element.timestamp_micros, tuple(element.windows), element.pane_info)
        emitter.resume()
        try:
            emitter.take(results)
        except Exception:
            # Earlier outputs count as emitted: if a consumer fails on them, its error is raised instead.
            emitter.hand_on()
            raise
        emitter.hand_on()


def _observes(estimator: Any) -> bool:
    """Return whether an estimator, which the SDK has wrapped, observes the times of outputs."""
    return getattr(estimator._watermark_estimator.observe_timestamp, "__code__", None) not in _BLIND


def _observed(results: Iterable[Any], own: Any, observe: Any) -> Iterator[Any]:
    """Yield the results. Each one's time is observed before user code continues, because it may ask the estimator."""
    for result in results:
        inner = result.value if isinstance(result, TaggedOutput) else result
        observe(inner.timestamp if isinstance(inner, TimestampedValue | WindowedValue) else own)
        yield result


def claim(transform: Any) -> None:
    """Mark a splittable transform for our operation, unless its proto excludes this."""
    if transform.spec.urn != _SDK_URN or recordlists.makes_lists(transform):
        return
    payload = runner_pb.ParDoPayload.FromString(transform.spec.payload)
    if payload.state_specs or payload.timer_family_specs or len(transform.inputs) != 1 + len(payload.side_inputs):
        return
    hide_side_inputs(transform, payload)
    transform.spec.urn = _URN


def _create(factory: Any, transform_id: str, transform: Any, payload: Any, consumers: Any) -> Any:
    op = create_par_do(factory, transform_id, transform, payload, consumers, _choose, _SDK_URN)
    if isinstance(op, RestrictionOperation):
        (tag,) = transform.inputs
        op.input_info = operations.OpInputInfo(transform_id, tag, op.input_coder, transform.outputs.keys())
    return op


def _choose(fn: Any) -> Any:
    ours = fn._process_defined and not has_batches(fn) and not getattr(fn, "_runtime_output_constraints", None)
    return RestrictionOperation if ours else None


def register() -> None:
    """Register our operation in the SDK's factory. Idempotent."""
    bundle_processor.BeamTransformFactory.register_urn(_URN, runner_pb.ParDoPayload)(_create)
