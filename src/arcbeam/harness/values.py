"""Transforms that look at nothing but the value, run block by block.

Owns which DoFns qualify, and their operation: user code is called in a tight loop over the values of a block, while
timestamps, windows and panes stay beside them, untouched. What does not qualify stays the SDK's own operation. Flatten
and WindowInto take blocks, too. The SDK's internals that are leaned on are held by a contract test.

A DoFn qualifies by its signature: `process` takes the element alone, there is one output, and no side inputs, state,
timers, restrictions, batches, or type checks at run time. An output that is more than a value (a `TimestampedValue`, a
`WindowedValue`, a `TaggedOutput`) goes the SDK's way, and so does what else its block put out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from graphlib import TopologicalSorter
from inspect import isgeneratorfunction
from itertools import compress, islice, repeat
from typing import Any

from apache_beam.coders.coders import WindowedValueCoder
from apache_beam.internal import pickler
from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.pvalue import TaggedOutput
from apache_beam.runners import common
from apache_beam.runners.worker import bundle_processor, operation_specs, operations
from apache_beam.transforms import core
from apache_beam.transforms.window import FixedWindows, GlobalWindows, SlidingWindows, TimestampedValue, WindowFn
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import PANE_INFO_UNKNOWN, WindowedValue, create

from arcbeam.harness.blocks import Block, Each
from arcbeam.harness.operations import BlockOperation, longest_of

PAR_DO_URN = common_urns.primitives.PAR_DO.urn
_OURS = {
    PAR_DO_URN: "arcbeam:transform:values:v1",
    common_urns.primitives.FLATTEN.urn: "arcbeam:transform:flatten:v1",
    common_urns.primitives.ASSIGN_WINDOWS.urn: "arcbeam:transform:window_into:v1",
}
_SPECIAL = (TimestampedValue, WindowedValue, TaggedOutput)
_MOST_KINDS = 1000
_MOST_WINDOWS = 100_000
_MOST_IN_A_ROW = 80
"""Transforms through which a block may be handed on: each takes some frames of Python's stack, the SDK's fewer."""


def claim(transforms: Mapping[str, Any]) -> None:
    """Gives the transforms of a bundle descriptor to this module whose protos do not say that they cannot be ours."""
    if _most_in_a_row(transforms) <= _MOST_IN_A_ROW:
        for transform in transforms.values():
            _claim(transform)


def _most_in_a_row(transforms: Mapping[str, Any]) -> int:
    made_by = {pcoll: name for name, transform in transforms.items() for pcoll in transform.outputs.values()}
    before = {
        name: {made_by[pcoll] for pcoll in transform.inputs.values() if pcoll in made_by}
        for name, transform in transforms.items()
    }
    place: dict[str, int] = {}
    for name in TopologicalSorter(before).static_order():
        place[name] = 1 + max((place[other] for other in before[name]), default=0)
    return max(place.values(), default=0)


def _claim(transform: Any) -> None:
    urn = transform.spec.urn
    if urn == PAR_DO_URN:
        payload = runner_pb.ParDoPayload.FromString(transform.spec.payload)
        needs = (
            payload.side_inputs
            or payload.state_specs
            or payload.timer_family_specs
            or payload.restriction_coder_id
            or payload.requests_finalization
            or payload.requires_stable_input
            or payload.requires_time_sorted_input
        )
        if needs or len(transform.outputs) != 1 or len(transform.inputs) != 1:
            return
    if urn in _OURS:
        transform.spec.urn = _OURS[urn]


# User code, as it is called.


def _probe(x: Any) -> Any:
    return x


def _code(transform: Any) -> Any:
    return transform.fn.process.__code__


_WRAPPERS = {
    # A function that may take more gets a wrapper that passes on arguments, of which there are none.
    "map": (_code(core.Map(_probe)), _code(core.Map(min))),
    "tuple": (_code(core.MapTuple(_probe)),),
    "filter": (_code(core.Filter(_probe)),),
}


def unwrapped(process: Any) -> tuple[str, Callable[..., Any]] | None:
    """The function that the SDK's Map, MapTuple or Filter has wrapped, and which of them; None for all else."""
    code: Any = getattr(process, "__code__", None)
    kind = next((kind for kind, codes in _WRAPPERS.items() if code in codes), None)
    return None if kind is None else (kind, process.__closure__[code.co_freevars.index("fn")].cell_contents)


class ValueOperation(BlockOperation):
    """A DoFn that looks at the value only."""

    def __init__(self, name: Any, spec: Any, factory: Any, input_coder: Any, fn: Any, windowing: Any) -> None:
        super().__init__(name, spec, factory, input_coder)
        self._fn, self._windowing = fn, windowing
        self._process = fn.process
        found = unwrapped(fn.process)
        self._run: Callable[[Block], None] = self._flat
        if found is not None:
            kind, self._call = found
            self._run = {"map": self._map, "tuple": self._map_tuple, "filter": self._filter}[kind]
        self._estimate_output = spec.output_coders[0].get_impl().estimate_size
        self._windows = _Windows(windowing.windowfn)
        self._longest = 1
        self._plain: set[type] = set()

    def setup(self, data_sampler: Any = None) -> None:
        """See the SDK's `Operation`."""
        with self.scoped_start_state:
            super().setup(data_sampler)
            receivers = operations._TaggedReceivers(self.counter_factory, self.name_context.logging_name())
            receivers[None] = self.receivers[0]
            receivers[self.spec.output_tags[0]] = self.receivers[0]
            state = common.DoFnState(self.counter_factory)
            state.step_name = self.name_context.logging_name()
            self._runner = common.DoFnRunner(
                self._fn,
                (),
                {},
                [],
                self._windowing,
                tagged_receivers=receivers,
                step_name=self.name_context.logging_name(),
                state=state,
                transform_id=self.name_context.transform_id,
                operation_name=self.name_context.metrics_name(),
            )
            outputs = self._windowing.windowfn, self.receivers[0], receivers, None, None, False, False
            self._sdk_outputs = common._OutputHandler(*outputs)
            # The SDK looks at what a DoFn returns for its first element, if it is a class's and not a generator.
            self._refuse = (
                None
                if isinstance(self._fn, core.CallableWrapperDoFn) or isgeneratorfunction(self._process)
                else common._OutputHandler(*outputs, True).handle_process_outputs
            )
            self._runner.setup()
        self._emit = self._outputs[0].emit

    def start(self) -> None:
        """See the SDK's `Operation`."""
        with self.scoped_start_state:
            super().start()
            self._runner.start()

    def finish(self) -> None:
        """See the SDK's `Operation`."""
        super().finish()
        with self.scoped_finish_state:
            self._runner.finish()

    def teardown(self) -> None:
        """See the SDK's `Operation`."""
        with self.scoped_finish_state:
            self._runner.teardown()

    def _take(self, block: Block) -> None:
        with self.scoped_process_state:
            try:
                self._run(block)
            except BaseException as e:
                # SUBTLE: as the SDK does it, the message says which step; one that says it already stays as it is.
                self._runner._reraise_augmented(e)

    # Each of these calls user code for every value, and hands on what it returns.

    def _map(self, block: Block) -> None:
        self._by_parts(block, self._map_part)

    def _map_tuple(self, block: Block) -> None:
        self._by_parts(block, self._map_tuple_part)

    def _by_parts(self, block: Block, run: Callable[[Block], None]) -> None:
        position, total = 0, len(block)
        while position < total:
            taken = min(self._longest, total - position)
            run(block if taken == total else block.slice(position, position + taken))
            position += taken

    def _map_part(self, block: Block) -> None:
        # SUBTLE: no `map`, to which a StopIteration of user code is the end, not an error.
        call = self._call
        self._put_out(block.with_values([call(value) for value in block.values]))

    def _map_tuple_part(self, block: Block) -> None:
        call = self._call
        self._put_out(block.with_values([call(*value) for value in block.values]))

    def _filter(self, block: Block) -> None:
        call, values = self._call, block.values
        flags = [call(value) for value in values]
        self._put_out(block.compress(list(compress(values, flags)), flags))

    def _flat(self, block: Block) -> None:
        process, longest = self._process, self._longest
        uniform = block.uniform
        outputs: list[Any] = []
        places: list[int] = []
        for place, value in enumerate(block.values):
            results = process(value)
            if self._refuse is not None:
                refuse, self._refuse = self._refuse, None
                if isinstance(results, str | bytes | dict):
                    refuse(block.element(place), results)
            if results is None:
                continue
            if type(results) is list and len(results) < longest:
                outputs += results
                more: Iterator[Any] | None = None
            else:
                more = iter(results)
                outputs.extend(islice(more, longest))
            if not uniform:
                places.extend(repeat(place, len(outputs) - len(places)))
            while len(outputs) >= longest:
                self._put_out(block.pick(outputs, places))
                outputs, places, longest = [], [], self._longest
                if more is None:
                    break
                outputs.extend(islice(more, longest))
                places.extend(repeat(place, len(outputs)))
        if outputs:
            self._put_out(block.pick(outputs, places))

    def _put_out(self, block: Block) -> None:
        """Hands on a block whose values are what user code has put out."""
        outputs = block.values
        if self._are_plain(outputs):
            self._hand_on(block)
        elif not self._hand_on_timestamped(block):
            handle = self._sdk_outputs.handle_process_outputs
            if block.uniform:
                handle(block.element(0), outputs)
            else:
                for element in block.elements():
                    handle(element, (element.value,))

    def _are_plain(self, outputs: list[Any]) -> bool:
        kinds = set(map(type, outputs))
        if kinds <= self._plain:
            return True
        if any(issubclass(kind, _SPECIAL) for kind in kinds):
            return False
        if len(self._plain) > _MOST_KINDS:
            self._plain.clear()
        self._plain |= kinds
        return True

    def _hand_on_timestamped(self, block: Block) -> bool:
        """Hands on values with new times, if that is what all of them are and their windows are simply found."""
        windows, outputs = self._windows, block.values
        if not windows.known or set(map(type, outputs)) != {TimestampedValue} or not block.in_one_window():
            return False
        micros = Each(output.timestamp.micros for output in outputs)
        self._hand_on(Block([output.value for output in outputs], micros, windows.of(micros), PANE_INFO_UNKNOWN))
        return True

    def _hand_on(self, block: Block) -> None:
        if block.values:
            samples = {0, len(block) - 1}
            self._longest = longest_of(
                max(self._longest, len(block)), self._estimate_output, *map(block.element, samples)
            )
            self._emit(block)


class FlattenOperation(BlockOperation):
    """Hands on what comes from any input."""

    def process(self, o: Any) -> None:
        """Takes one windowed value."""
        with self.scoped_process_state:
            self.output(o)

    def _take(self, block: Block) -> None:
        with self.scoped_process_state:
            self._outputs[0].emit(block)


class _Windows:
    """What windows a time is in, worked out once for all times that are certain to have the same.

    Attributes:
        known: whether a time is all that the window function looks at.
    """

    def __init__(self, windowfn: Any) -> None:
        self._windowfn = windowfn
        self._same = _same_windows(windowfn)
        self.known = self._same is not None
        self._table: dict[int, tuple[Any, ...]] = {}

    def at(self, micros: int) -> tuple[Any, ...]:
        """The windows of a time, if `known`."""
        key = self._same(micros)  # type: ignore[misc]  # not None
        windows = self._table.get(key)
        if windows is None:
            if len(self._table) > _MOST_WINDOWS:
                self._table.clear()
            context = WindowFn.AssignContext(Timestamp(micros=micros))
            windows = self._table[key] = tuple(self._windowfn.assign(context))
        return windows

    def of(self, micros: Any) -> Any:
        """The column of windows for a column of times."""
        if type(micros) is not Each:
            return self.at(micros)
        found = list(map(self.at, micros))
        first = found[0]
        return first if all(windows is first for windows in found) else Each(found)


class WindowIntoOperation(BlockOperation):
    """Assigns windows."""

    def __init__(self, name: Any, spec: Any, factory: Any, input_coder: Any, windowfn: Any) -> None:
        super().__init__(name, spec, factory, input_coder)
        self._windowfn = windowfn
        self._windows = _Windows(windowfn)

    def setup(self, data_sampler: Any = None) -> None:
        """See the SDK's `Operation`."""
        super().setup(data_sampler)
        # To the SDK this is a DoFn: it says which step a window function failed in.
        name, windowing = self.name_context.logging_name(), core.Windowing(self._windowfn)
        self._runner = common.DoFnRunner(core.DoFn(), (), {}, [], windowing, {None: self.receivers[0]}, step_name=name)

    def _take(self, block: Block) -> None:
        with self.scoped_process_state:
            try:
                if self._windows.known and block.in_one_window():
                    block = Block(block.values, block.micros, self._windows.of(block.micros), PANE_INFO_UNKNOWN)
                else:
                    elements = [assigned for element in block.elements() for assigned in self._assigned(element)]
                    block = Block.of(elements) if elements else block.slice(0, 0)
                self._outputs[0].emit(block)
            except BaseException as e:
                self._runner._reraise_augmented(e)

    def _assigned(self, element: Any) -> Iterator[Any]:
        timestamp = element.timestamp
        for window in element.windows:
            context = WindowFn.AssignContext(timestamp, element=element.value, window=window)
            yield create(element.value, element.timestamp_micros, tuple(self._windowfn.assign(context)))


def _same_windows(windowfn: Any) -> Callable[[int], int] | None:
    """A function of event time (microseconds) that is equal where windows are; None if they depend on more."""
    kind = type(windowfn)
    if kind is GlobalWindows:
        return lambda micros: 0
    if kind is FixedWindows:
        period, offset = windowfn.size.micros, windowfn.offset.micros
    elif kind is SlidingWindows and windowfn.size.micros % windowfn.period.micros == 0:
        period, offset = windowfn.period.micros, windowfn.offset.micros
    else:
        return None
    return lambda micros: int((micros - offset) // period)


def _create_par_do(factory: Any, transform_id: str, transform: Any, payload: Any, consumers: Any) -> Any:
    serialized = core.DoFnInfo.from_runner_api(payload.do_fn, factory.context).serialized_dofn_data()
    fn, args, kwargs, side_inputs, windowing = pickler.loads(serialized)
    (pcoll,) = transform.inputs.values()
    if args or kwargs or side_inputs or not _is_value_only(fn):
        create_sdk, _ = bundle_processor.BeamTransformFactory._known_urns[PAR_DO_URN]
        return create_sdk(factory, transform_id, transform, payload, consumers)
    if not windowing:
        windowing = factory.context.windowing_strategies.get_by_id(
            factory.descriptor.pcollections[pcoll].windowing_strategy_id
        )
    coder = _windowed(factory, pcoll)
    spec = operation_specs.WorkerDoFn(
        serialized_fn=serialized,
        output_tags=list(transform.outputs),
        input=None,
        side_inputs=None,
        output_coders=list(factory.get_output_coders(transform).values()),
    )
    name = common.NameContext(transform.unique_name, transform_id)
    op = ValueOperation(name, spec, factory, coder, fn, windowing)
    return factory.augment_oldstyle_op(op, transform.unique_name, consumers, spec.output_tags)


def _is_value_only(fn: Any) -> bool:
    signature = common.DoFnSignature(fn)
    process = signature.process_method
    return not (
        process.defaults
        or not fn._process_defined
        or fn._process_batch_defined
        or signature.process_batch_method.defaults
        or signature.is_stateful_dofn()
        or signature.is_splittable_dofn()
        or getattr(process.method_value, "_beam_yields_batches", False)
        or getattr(fn, "_runtime_output_constraints", None)
    )


def _windowed(factory: Any, pcoll: str) -> WindowedValueCoder:
    return factory.get_windowed_coder(pcoll)


def _create_flatten(factory: Any, transform_id: str, transform: Any, payload: Any, consumers: Any) -> Any:
    (output,) = transform.outputs.values()
    spec = operation_specs.WorkerFlatten(None, [factory.get_only_output_coder(transform)])
    name = common.NameContext(transform.unique_name, transform_id)
    op = FlattenOperation(name, spec, factory, _windowed(factory, output))
    return factory.augment_oldstyle_op(op, transform.unique_name, consumers)


def _create_window_into(factory: Any, transform_id: str, transform: Any, payload: Any, consumers: Any) -> Any:
    (pcoll,) = transform.inputs.values()
    spec = operation_specs.WorkerFlatten(None, [factory.get_only_output_coder(transform)])
    name = common.NameContext(transform.unique_name, transform_id)
    windowfn = core.Windowing.from_runner_api(payload, factory.context).windowfn
    op = WindowIntoOperation(name, spec, factory, _windowed(factory, pcoll), windowfn)
    return factory.augment_oldstyle_op(op, transform.unique_name, consumers)


def register() -> None:
    """Teaches the SDK's factory our operations. Idempotent."""
    for urn, parameter, creator in (
        (PAR_DO_URN, runner_pb.ParDoPayload, _create_par_do),
        (common_urns.primitives.FLATTEN.urn, None, _create_flatten),
        (common_urns.primitives.ASSIGN_WINDOWS.urn, runner_pb.WindowingStrategy, _create_window_into),
    ):
        bundle_processor.BeamTransformFactory.register_urn(_OURS[urn], parameter)(creator)
