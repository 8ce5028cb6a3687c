"""Precombining before the shuffle, in bounded memory.

Owns the operation of the lifted part of a combine before the exchange, when its accumulators are emitted
(`harness.transforms.slices` stores them), and which operations override teardown. The table belongs to the bundle. Must
not know Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Any

from apache_beam import CombineFn, DoFn
from apache_beam.internal import pickler
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.runners.common import NameContext
from apache_beam.runners.worker import bundle_processor, operation_specs
from apache_beam.transforms import core
from apache_beam.transforms.window import Sessions, TimestampCombiner
from apache_beam.utils.timestamp import MAX_TIMESTAMP
from apache_beam.utils.windowed_value import PANE_INFO_UNKNOWN

from arcbeam.errors import ArcbeamError
from arcbeam.harness.encoding.blocks import Block, Each, SameKeyBlock
from arcbeam.harness.encoding.codererrors import key_error, producer_of
from arcbeam.harness.encoding.windowcoder import WindowBytes
from arcbeam.harness.operations.blockoperation import BLOCK_ELEMENTS_MAX, BlockOperation, user_error
from arcbeam.harness.operations.keyedwrite import KeyedWrite
from arcbeam.harness.operations.taskcontext import OperationContext
from arcbeam.harness.transforms.folds import fold_of, same_key_fold_of
from arcbeam.harness.transforms.slices import Slices
from arcbeam.model.urns import PRECOMBINE_URN
from arcbeam.sizes import threshold

_CHECK_EVERY = threshold(1024)
_HARDLY_FEWER = 0.9
"""Accumulators per element from which a table that has used up its budget is not worth keeping."""
_PASSING = threshold(1_000_000, 2)
"""Elements until a table is tried again."""
_ALONE = threshold(64)
"""Accumulators from which a part gets a block of its own."""
_END = int(MAX_TIMESTAMP.micros)
_ENTRY_OVERHEAD = 200
"""Bytes of an entry of the table besides its accumulator's encoded size; for the memory budget."""
_OBJECT_OVERHEAD = 64
"""The same for an element of an accumulator that is a collection."""


class Precombine(BlockOperation):
    """Adds each value to the accumulator of its key (and window); outputs accumulators.

    If almost nothing is combined, a table is not worth its cost. Then each block is combined separately, for a while.
    """

    def __init__(self, name: Any, factory: Any, payload: Any, transform: Any, coder: Any, windowing: Any) -> None:
        output_coder = factory.get_only_output_coder(transform)
        spec = operation_specs.WorkerPartialGroupByKey(None, None, [output_coder])
        super().__init__(name, spec, factory, coder)
        self.combine_fn = CombineFn.from_runner_api(payload.combine_fn, factory.context)
        settings = factory.data_channel_factory.settings
        self._budget = settings.group_memory_bytes
        self._folds, self._gives_up = settings.folds, settings.giving_up
        accumulator_coder = factory.context.coders.get_by_id(payload.accumulator_coder_id)
        self._estimate = accumulator_coder.get_impl().estimate_size
        self._estimate_value = coder.wrapped_value_coder.value_coder().get_impl().estimate_size
        self._key_coder = coder.wrapped_value_coder.key_coder()
        self.producer = ""
        self._window_bytes = WindowBytes(coder.window_coder)
        # Of a streaming job: what the accumulators stand for is counted.
        self._counts = bool(settings.event_times)
        self._sessions = self._gives_up and type(windowing.windowfn) is Sessions
        kind = windowing.timestamp_combiner
        self._choose_time: Any = {
            TimestampCombiner.OUTPUT_AT_EOW: None,
            TimestampCombiner.OUTPUT_AT_EARLIEST: min,
            TimestampCombiner.OUTPUT_AT_LATEST: max,
        }[kind]

    def setup(self, data_sampler: Any = None) -> None:
        """Set up the CombineFn."""
        super().setup(data_sampler)
        fn = self.combine_fn
        fn.setup()
        self._fold = fold_of(fn) if self._folds else None
        self._same_key_fold = same_key_fold_of(fn) if self._folds else None
        self._passing = self._arrived = 0
        taker = self._outputs[0].only_taker
        self._counter = taker.count_combined if self._counts and isinstance(taker, KeyedWrite) else None

    def start(self) -> None:
        """Start a bundle with an empty table."""
        super().start()
        self._clear()

    def _clear(self) -> None:
        self._since_check = self._since_bytes = 0
        self._next_check = _CHECK_EVERY
        self._slices = Slices(
            self.combine_fn, self._fold, self._key_coder.get_impl(), self._choose_time, self._same_key_fold
        )

    def _take(self, block: Block) -> None:
        """Add a block to the table, within the memory budget."""
        with self.scoped_process_state:
            count = len(block)
            alone: Block | None = None
            try:
                if self._are_alone(block):
                    alone = self._each_alone(block)
                else:
                    accumulator = self._absorb(block)
            except ArcbeamError:
                raise
            except Exception as e:
                raise key_error(self._key_coder, self.producer, e, block.values) or user_error(self, e) from e
            if alone is not None:
                self._outputs[0].emit(alone)
                return
            last = block.unkeyed[-1] if isinstance(block, SameKeyBlock) else block.values[-1][1]
            self._arrived += count
            self._since_check += count
            self._since_bytes += (self._estimate_value(last, True) + 1) * count
            if self._passing > 0:
                self._passing -= count
                self._flush()
            elif self._since_check >= self._next_check or self._since_bytes > self._budget >> 3:
                self._check(accumulator)

    def _are_alone(self, block: Block) -> bool:
        """Return whether almost no two elements share a session before merging: then nothing can be combined."""
        micros, windows = block.micros, block.windows
        return (
            self._sessions
            and type(micros) is Each
            and type(windows) is Each
            and len(micros) >= _ALONE
            and len(set(micros)) > _HARDLY_FEWER * len(micros)
        )

    def _each_alone(self, block: Block) -> Block:
        """Return the elements as accumulators, each with its window and time."""
        fn = self.combine_fn
        add, create = fn.add_input, fn.create_accumulator
        compact = None if type(fn).compact is CombineFn.compact else fn.compact
        pairs = [(key, add(create(), value)) for key, value in block.values]
        if compact is not None:
            pairs = [(key, compact(accumulator)) for key, accumulator in pairs]
        return Block(pairs, block.micros, block.windows, PANE_INFO_UNKNOWN)

    def _absorb(self, block: Block) -> Any:
        """Add a block to the table; return one of the accumulators."""
        add, encoded = self._slices.add, self._window_bytes.of
        if type(block.windows) is not Each:
            if isinstance(block, SameKeyBlock) and block.key is None:
                return self._slices.add_to_none(encoded(block.windows), block.unkeyed, block.times())
            return add(encoded(block.windows), block.values, block.times())
        accumulator: Any = None
        for windows, pairs, times in _by_windows(block):
            accumulator = add(encoded(windows), pairs, times)
        return accumulator

    def _check(self, accumulator: Any) -> None:
        """Sample an accumulator's size, and output everything when the budget is used up."""
        slices = self._slices
        size = self._estimate(accumulator, True)
        if isinstance(accumulator, list | dict | set | tuple):
            size += _OBJECT_OVERHEAD * len(accumulator)
        # Estimating a large accumulator (a list of all values) takes long, so it is done less often.
        self._since_check = self._since_bytes = 0
        self._next_check = max(_CHECK_EVERY, size >> 8)
        if slices.entries * (size + _ENTRY_OVERHEAD) + slices.overhead > self._budget:
            if self._gives_up and slices.entries > slices.added * _HARDLY_FEWER:
                self._passing = _PASSING
            self._flush()

    def _flush(self) -> None:
        """Output the table."""
        emit, counter = self._outputs[0].emit, self._counter
        more = self._slices.elements() if counter is not None else {}
        accumulators = 0
        # Small parts share a block.
        values: list[Any] = []
        times, windows = Each(), Each()
        for part in self._with_step(self._slices.take(BLOCK_ELEMENTS_MAX)):
            if counter is not None:
                more[part.window] -= len(part.pairs)
                accumulators += len(part.pairs)
            window = self._window_bytes.window(part.window)
            end = min(window.max_timestamp().micros, _END)
            if part.times is None and len(part.pairs) >= _ALONE:
                emit(Block(part.pairs, end, (window,), PANE_INFO_UNKNOWN))
                continue
            values += part.pairs
            times += part.times or repeat(end, len(part.pairs))
            windows += repeat((window,), len(part.pairs))
            if len(values) >= BLOCK_ELEMENTS_MAX >> 1:
                emit(Block(values, times, windows, PANE_INFO_UNKNOWN))
                values, times, windows = [], Each(), Each()
        if values:
            emit(Block(values, times, windows, PANE_INFO_UNKNOWN))
        if counter is not None:
            counter(self._arrived - accumulators, more)
        self._arrived = 0
        self._clear()

    def _with_step(self, items: Iterator[Any]) -> Iterator[Any]:
        """Yield the items. Errors of the user's CombineFn name the transform."""
        try:
            yield from items
        except ArcbeamError:
            raise
        except Exception as e:
            raise user_error(self, e) from e

    def finish(self) -> None:
        """Output the table, and end the bundle."""
        if self._waiting:
            self._take_waiting()
        with self.scoped_finish_state:
            self._flush()
        super().finish()

    def teardown(self) -> None:
        """Tear down the CombineFn."""
        with self.scoped_finish_state:
            self.combine_fn.teardown()


def _by_windows(block: Block) -> Iterator[tuple[Any, list[Any], Iterable[int]]]:
    """Yield the values of a block and their times, by their windows."""
    # Equal windows are usually the same object.
    places: dict[int, list[int]] = {}
    for place, windows in enumerate(block.windows):
        places.setdefault(id(windows), []).append(place)
    values, micros = block.values, block.micros
    for found in places.values():
        times: Iterable[int] = [micros[place] for place in found] if type(micros) is Each else repeat(micros)
        yield block.windows[found[0]], [values[place] for place in found], times


def overrides_teardown(ops: Iterable[Any]) -> bool:
    """Return whether any operation's DoFn or CombineFn overrides teardown."""
    for op in ops:
        fn: Any = getattr(op, "combine_fn", None)
        if fn is not None:
            pass
        elif getattr(op.spec, "serialized_fn", None):
            fn = pickler.loads(op.spec.serialized_fn)[0]
        else:
            continue
        if isinstance(fn, core.CombineValuesDoFn):
            fn = fn.combinefn
        base = CombineFn if isinstance(fn, CombineFn) else DoFn
        if getattr(type(fn), "teardown", base.teardown) is not base.teardown:
            return True
    return False


def register() -> None:
    """Register our precombine in the SDK's factory. Idempotent."""

    @bundle_processor.BeamTransformFactory.register_urn(  # type: ignore[untyped-decorator]
        PRECOMBINE_URN, runner_pb.CombinePayload
    )
    def create(factory: Any, transform_id: str, transform: Any, payload: Any, consumers: Any) -> Any:
        assert isinstance(factory.data_channel_factory, OperationContext)
        pcoll_id = next(iter(transform.inputs.values()))
        windowing = factory.context.windowing_strategies.get_by_id(
            factory.descriptor.pcollections[pcoll_id].windowing_strategy_id
        )
        name = NameContext(transform.unique_name, transform_id)
        op = Precombine(name, factory, payload, transform, factory.get_windowed_coder(pcoll_id), windowing)
        op.producer = producer_of(factory.descriptor, pcoll_id)
        return factory.augment_oldstyle_op(op, transform.unique_name, consumers)
