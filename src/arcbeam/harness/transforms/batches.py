"""DoFns that take or make batches (numpy arrays, Arrow tables, pandas frames, lists), run on blocks and batches.

Owns their operation, which converts blocks to batches. `harness.transforms.batchoutput` handles outputs. The SDK calls
user code. A DoFn qualifies if it has one output, and neither state, timers, restrictions, finalization nor type checks
at run time. All others get the SDK's operation.

As in the SDK, the elements of a batch share one time, one set of windows and one pane, and their number is limited.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from apache_beam.internal import pickler
from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.runners import common
from apache_beam.runners.worker import bundle_processor, operations
from apache_beam.transforms import core
from apache_beam.typehints.batch import BatchConverter
from apache_beam.utils.windowed_value import HomogeneousWindowedBatch, create
from typing_extensions import override

from arcbeam.harness.encoding.blocks import Block, WholeBlock, gathered
from arcbeam.harness.operations.blockoperation import dofn_runner, fitting
from arcbeam.harness.operations.taskcontext import OperationContext
from arcbeam.harness.transforms.batchforms import alike, batch_maker
from arcbeam.harness.transforms.batchoutput import BatchOutput, BatchTaker
from arcbeam.harness.transforms.vectorization import has_batches, only_processes

_PAR_DO_URN = common_urns.primitives.PAR_DO.urn
_BATCH_ELEMENTS_MAX = operations.GeneralPurposeConsumerSet.MAX_BATCH_SIZE


class BatchOperation(BatchTaker):
    """A DoFn that takes batches, makes batches, or both.

    Invariant: blocks are collected into a batch at most until the bundle ends, and no later element overtakes them.

    Args:
        spec: the SDK's specification.
        input_coder: coder of the input's windowed values.
        sides: the SDK's maps of side inputs.
    """

    def __init__(self, name: Any, spec: Any, factory: Any, input_coder: Any, sides: list[Any]) -> None:
        super().__init__(name, spec, factory, input_coder)
        self._fn, self._args, self._kwargs, _, self._windowing = pickler.loads(spec.serialized_fn)
        self._sides = sides
        self._takes_batches = bool(self._fn._process_batch_defined)
        self._input = self._fn.input_batch_converter if self._takes_batches else None
        self._make = None if self._input is None else batch_maker(self._input)
        (coder,) = spec.output_coders
        self._estimate_output = coder.get_impl().estimate_size
        self._held: list[Block] = []
        self._count = 0

    # The SDK's interface of operations that may take or make batches.

    def get_batching_preference(self) -> Any:
        """See the SDK's `Operation`: takes elements, which become batches here."""
        preference = common.BatchingPreference
        return preference.DO_NOT_CARE if self._takes_batches else preference.BATCH_FORBIDDEN

    def get_input_batch_converter(self) -> BatchConverter | None:
        """See the SDK's `Operation`."""
        return self._input

    def get_output_batch_converter(self) -> BatchConverter | None:
        """See the SDK's `Operation`."""
        converter: BatchConverter | None = getattr(self._fn, "output_batch_converter", None)
        return converter

    @property
    @override
    def needs(self) -> Any:
        return None if self._input is None or self._fn._process_defined else self._input.batch_type

    @override
    def takes(self, converter: BatchConverter | None) -> bool:
        return self._takes_batches and converter is not None and self._input == converter

    # Lifecycle.

    def setup(self, data_sampler: Any = None) -> None:
        """See the SDK's `Operation`."""
        with self.scoped_start_state:
            super().setup(data_sampler)
            self._receiver = BatchOutput(
                self.get_output_batch_converter(),
                self.receivers[0],
                self._outputs[0],
                self._consumers_of.get(0, []),
                self._estimate_output,
            )
            receivers = operations._TaggedReceivers(self.counter_factory, self.name_context.logging_name())
            receivers[None] = receivers[self.spec.output_tags[0]] = self._receiver
            self._runner = dofn_runner(
                self, self._fn, self._args, self._kwargs, self._sides, self._windowing, receivers
            )
            self._runner.setup()

    def start(self) -> None:
        """See the SDK's `Operation`."""
        with self.scoped_start_state:
            super().start()
            self._held, self._count = [], 0
            self._receiver.drop()
            self._runner.start()

    def finish(self) -> None:
        """Process the collected elements, and end the bundle."""
        super().finish()
        with self.scoped_process_state:
            self._guarded(self._process_held)
        with self.scoped_finish_state:
            self._runner.finish()
            self._guarded(self._receiver.flush)

    def teardown(self) -> None:
        """See the SDK's `Operation`."""
        with self.scoped_finish_state:
            self._runner.teardown()

    def reset(self) -> None:
        """See the SDK's `Operation`."""
        super().reset()
        for side in self._sides:
            side.reset()

    # Elements and batches.

    @override
    def process_batch(self, windowed_batch: Any) -> None:
        if self._waiting:
            self._take_waiting()
        with self.scoped_process_state:
            self._guarded(self._process_held)
            self._runner.process_batch(windowed_batch)

    def _take(self, block: Block) -> None:
        with self.scoped_process_state:
            self._guarded(partial(self._hold if self._takes_batches else self._process, block))

    def _guarded(self, call: Any) -> None:
        """Call a function. Errors name the transform, as in the SDK, unless they already do."""
        try:
            call()
        except BaseException as e:
            self._runner._reraise_augmented(e)

    def _process(self, block: Block) -> None:
        for element in block.elements():
            self._runner.process(element)

    def _hold(self, block: Block) -> None:
        most = min(_BATCH_ELEMENTS_MAX, fitting(self._estimate_input, block.element(0), block.element(len(block) - 1)))
        for part in block.parts(max(1, most)):
            if self._count + len(part) > most:
                self._process_held()
            self._held.append(part)
            self._count += len(part)

    def _process_held(self) -> None:
        if not self._held:
            return
        blocks, self._held, self._count = self._held, [], 0
        for block in gathered(blocks):
            for part in alike(block):
                of = create(self._batch_of(part), part.micros, part.windows, part.panes)
                self._runner.process_batch(HomogeneousWindowedBatch(of))

    def _batch_of(self, block: Block) -> Any:
        if isinstance(block, WholeBlock):
            try:
                batch = block.form.unpack(block.packed, self._input)
            except Exception:
                # Making the batch of elements raises an error that explains the problem.
                batch = None
            if batch is not None:
                return batch
        return self._make(block.values)  # type: ignore[misc]


def register() -> None:
    """Register our operation in the SDK's factory, which still creates the others. Idempotent."""

    @bundle_processor.BeamTransformFactory.register_urn(  # type: ignore[untyped-decorator]
        _PAR_DO_URN, runner_pb.ParDoPayload
    )
    def create(factory: Any, transform_id: str, transform: Any, payload: Any, consumers: Any) -> Any:
        context = factory.data_channel_factory
        if isinstance(context, OperationContext) and context.settings.batches and only_processes(transform, payload):
            serialized = core.DoFnInfo.from_runner_api(payload.do_fn, factory.context).serialized_dofn_data()
            if handles_batches(pickler.loads(serialized)[0]):
                (main,) = (pcoll for tag, pcoll in transform.inputs.items() if tag not in payload.side_inputs)
                coder = factory.get_windowed_coder(main)

                def operation(name: Any, spec: Any, counters: Any, sampler: Any, sides: Any, state: Any) -> Any:
                    return BatchOperation(name, spec, factory, coder, sides)

                return bundle_processor._create_pardo_operation(
                    factory, transform_id, transform, consumers, serialized, payload, operation
                )
        return bundle_processor.create_par_do(factory, transform_id, transform, payload, consumers)


def handles_batches(fn: Any) -> bool:
    """Return whether a DoFn takes or makes batches, without type checks at run time."""
    return has_batches(fn) and not getattr(fn, "_runtime_output_constraints", None)
