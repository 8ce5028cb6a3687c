"""Precombining before the shuffle: accumulators by key and window, in bounded memory.

Owns the lifted half of a combine that runs before the exchange, and the question which operations have a teardown
worth calling. The table belongs to the bundle. Must not know Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from operator import itemgetter
from typing import Any

from apache_beam import CombineFn, DoFn
from apache_beam.coders.coders import GlobalWindowCoder
from apache_beam.internal import pickler
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.runners.common import NameContext
from apache_beam.runners.worker import bundle_processor, operation_specs
from apache_beam.transforms import core
from apache_beam.transforms.window import GlobalWindow, TimestampCombiner
from apache_beam.utils.timestamp import MAX_TIMESTAMP
from apache_beam.utils.windowed_value import PANE_INFO_UNKNOWN

from arcbeam.errors import ArcbeamError
from arcbeam.harness.blocks import Block, Each
from arcbeam.harness.folds import fold_of
from arcbeam.harness.operations import LONGEST, BlockOperation, user_error
from arcbeam.harness.windowcoder import WindowBytes
from arcbeam.harness.wiring import Wiring
from arcbeam.model.urns import PRECOMBINE_URN

_CHECK_EVERY = 1024
_END = int(MAX_TIMESTAMP.micros)
_ENTRY_OVERHEAD = 200
"""Bytes that an entry of the table costs beside its accumulator's encoded size; for the memory budget."""
_KEY = itemgetter(0)
_NOTHING = object()
_OBJECT_OVERHEAD = 64
"""The same for an element of an accumulator that is a collection."""


class Precombine(BlockOperation):
    """Adds each value to the accumulator of its key (and window); outputs accumulators.

    Keys of exact type int, str or bytes are compared as objects, all others by their encoding, as
    `harness.groupwrite` does.
    """

    def __init__(self, name: Any, factory: Any, payload: Any, transform: Any, coder: Any, windowing: Any) -> None:
        output_coder = factory.get_only_output_coder(transform)
        spec = operation_specs.WorkerPartialGroupByKey(None, None, [output_coder])
        super().__init__(name, spec, factory, coder)
        self.combine_fn = CombineFn.from_runner_api(payload.combine_fn, factory.context)
        self._budget = factory.data_channel_factory.settings.group_memory_bytes
        accumulator_coder = factory.context.coders.get_by_id(payload.accumulator_coder_id)
        self._estimate = accumulator_coder.get_impl().estimate_size
        self._estimate_value = coder.wrapped_value_coder.value_coder().get_impl().estimate_size
        key_impl = coder.wrapped_value_coder.key_coder().get_impl()
        self._encode_key, self._decode_key = key_impl.encode, key_impl.decode
        self._global = isinstance(coder.window_coder, GlobalWindowCoder)
        self._window_bytes = WindowBytes(coder.window_coder)
        kind = windowing.timestamp_combiner
        self._combine_time: Any = {
            TimestampCombiner.OUTPUT_AT_EOW: None,
            TimestampCombiner.OUTPUT_AT_EARLIEST: min,
            TimestampCombiner.OUTPUT_AT_LATEST: max,
        }[kind]
        self._simple = self._global and self._combine_time is None

    def setup(self, data_sampler: Any = None) -> None:
        """Sets up the CombineFn."""
        super().setup(data_sampler)
        fn = self.combine_fn
        fn.setup()
        self._add, self._create = fn.add_input, fn.create_accumulator
        overrides = type(fn).compact is not CombineFn.compact
        self._compact = fn.compact if overrides else None
        self._fold = fold_of(fn)

    def start(self) -> None:
        """Starts a bundle with an empty table."""
        super().start()
        self._clear()

    def _clear(self) -> None:
        self._windows = 0
        self._since_check = self._since_bytes = 0
        self._next_check = _CHECK_EVERY
        self._tables: dict[type, dict[Any, Any]] = {int: {}, str: {}, bytes: {}}
        self._encoded: dict[bytes, Any] = {}

    def _take(self, block: Block) -> None:
        """Adds a block to the table; looks after the memory budget."""
        with self.scoped_process_state:
            values = block.values
            try:
                entry = self._absorb_simple(values) if self._simple else self._absorb_windowed(block)
            except ArcbeamError:
                raise
            except Exception as e:
                raise user_error(self, e) from e
            self._since_check += len(values)
            self._since_bytes += (self._estimate_value(values[-1][1], True) + 1) * len(values)
            if entry is not None and (self._since_check >= self._next_check or self._since_bytes > self._budget >> 3):
                self._check(entry[0])

    def _absorb_simple(self, pairs: list[Any]) -> Any:
        """Adds values to the table; returns one of the accumulators, in a list."""
        fold, tables = self._fold, self._tables
        kinds = set(map(type, map(_KEY, pairs)))
        of_one_kind: Any = tables.get(kinds.pop()) if len(kinds) == 1 else None
        if fold is not None and of_one_kind is not None:
            fold(of_one_kind, pairs)
            return [of_one_kind[pairs[-1][0]]]
        accumulator: Any = None
        encoded, encode = self._encoded, self._encode_key
        add, create = self._add, self._create
        for key, value in pairs:
            table: Any = tables.get(type(key))
            if table is None:
                key, table = encode(key), encoded
            accumulator = table.get(key, _NOTHING)
            if accumulator is _NOTHING:
                accumulator = create()
            accumulator = table[key] = add(accumulator, value)
        return [accumulator]

    def _absorb_windowed(self, block: Block) -> Any:
        tables, add, create, combine = self._tables, self._add, self._create, self._combine_time
        encode_windows = self._window_bytes.of
        entry: Any = None
        for (key, value), windows, micros in zip(block.values, block.windows_of_each(), block.times(), strict=False):
            table: Any = tables.get(type(key))
            if table is None:
                key, table = self._encode_key(key), self._encoded
            by_window = table.get(key)
            if by_window is None:
                by_window = table[key] = {}
            for window in encode_windows(windows):
                entry = by_window.get(window)
                if entry is None:
                    entry = by_window[window] = [create(), micros]
                    self._windows += 1
                elif combine is not None:
                    entry[1] = combine(entry[1], micros)
                entry[0] = add(entry[0], value)
        return entry

    def _check(self, accumulator: Any) -> None:
        """Samples an accumulator's size, and outputs everything when the budget is used up."""
        entries = self._windows or len(self._encoded) + sum(map(len, self._tables.values()))
        size = self._estimate(accumulator, True)
        if isinstance(accumulator, list | dict | set | tuple):
            size += _OBJECT_OVERHEAD * len(accumulator)
        # A large accumulator (a list of all values) takes long to estimate: that is done less often.
        self._since_check = self._since_bytes = 0
        self._next_check = max(_CHECK_EVERY, size >> 8)
        if entries * (size + _ENTRY_OVERHEAD) > self._budget:
            self._flush()

    def _flush(self) -> None:
        """Outputs the table."""
        tables = [(table, None) for table in self._tables.values()]
        everything: list[tuple[dict[Any, Any], Any]] = [*tables, (self._encoded, self._decode_key)]
        self._clear()
        emit = self._outputs[0].emit
        if self._simple:
            window = GlobalWindow()
            micros, windows = window.max_timestamp().micros, (window,)
            for part in _batched(self._told(self._accumulators(everything))):
                emit(Block(part, micros, windows, PANE_INFO_UNKNOWN))
            return
        for elements in _batched(self._told(self._windowed_accumulators(everything))):
            values, times, in_windows = (list(column) for column in zip(*elements, strict=True))
            emit(Block(values, Each(times), Each(in_windows), PANE_INFO_UNKNOWN))

    def _told(self, items: Iterator[Any]) -> Iterator[Any]:
        """The same; what the user's CombineFn raises names the step."""
        try:
            yield from items
        except ArcbeamError:
            raise
        except Exception as e:
            raise user_error(self, e) from e

    def _accumulators(self, everything: list[tuple[dict[Any, Any], Any]]) -> Iterator[tuple[Any, Any]]:
        compact = self._compact
        for table, decode in everything:
            for key, accumulator in table.items():
                yield (key if decode is None else decode(key)), accumulator if compact is None else compact(accumulator)

    def _windowed_accumulators(
        self, everything: list[tuple[dict[Any, Any], Any]]
    ) -> Iterator[tuple[tuple[Any, Any], int, tuple[Any, ...]]]:
        for table, decode in everything:
            for key, windows in table.items():
                decoded = key if decode is None else decode(key)
                for encoded, (accumulator, micros) in windows.items():
                    window = self._window_bytes.window(encoded)
                    if self._compact is not None:
                        accumulator = self._compact(accumulator)
                    if self._combine_time is None:
                        micros = min(window.max_timestamp().micros, _END)
                    yield (decoded, accumulator), micros, (window,)

    def finish(self) -> None:
        """Outputs the table; the bundle ends."""
        if self._waiting:
            self._take_waiting()
        with self.scoped_finish_state:
            self._flush()
        super().finish()

    def teardown(self) -> None:
        """Tears down the CombineFn."""
        with self.scoped_finish_state:
            self.combine_fn.teardown()


def _batched(items: Iterator[Any]) -> Iterator[list[Any]]:
    while batch := list(islice(items, LONGEST)):
        yield batch


def overrides_teardown(ops: Iterable[Any]) -> bool:
    """Whether any operation's DoFn or CombineFn has a teardown of its own."""
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
    """Teaches the SDK's factory our precombine. Idempotent."""

    @bundle_processor.BeamTransformFactory.register_urn(  # type: ignore[untyped-decorator]
        PRECOMBINE_URN, runner_pb.CombinePayload
    )
    def create(factory: Any, transform_id: str, transform: Any, payload: Any, consumers: Any) -> Any:
        assert isinstance(factory.data_channel_factory, Wiring)
        pcoll_id = next(iter(transform.inputs.values()))
        windowing = factory.context.windowing_strategies.get_by_id(
            factory.descriptor.pcollections[pcoll_id].windowing_strategy_id
        )
        name = NameContext(transform.unique_name, transform_id)
        op = Precombine(name, factory, payload, transform, factory.get_windowed_coder(pcoll_id), windowing)
        return factory.augment_oldstyle_op(op, transform.unique_name, consumers)
