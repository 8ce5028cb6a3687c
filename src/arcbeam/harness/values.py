"""Transforms that look at nothing but the value, run block by block.

Owns which DoFns qualify, and their operation: user code is called in a tight loop over the values of a block, while
timestamps, windows and panes stay beside them, untouched. What does not qualify stays the SDK's own operation. Flatten
and WindowInto take blocks, too. The SDK's internals that are leaned on are held by a contract test.

A DoFn qualifies by its signature: `process` takes the element, constants and side inputs, there is one output, and no
window, timestamp, pane, state, timers, restrictions, batches, or type checks at run time. Side inputs are looked up
once for a block whose elements are all in one window. An output that is more than a value (a `TimestampedValue`, a
`WindowedValue`, a `TaggedOutput`) goes the SDK's way, and so does what else its block put out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from graphlib import TopologicalSorter
from inspect import isgeneratorfunction
from itertools import compress, islice, repeat
from typing import Any

from apache_beam.coders.coders import WindowedValueCoder
from apache_beam.internal import pickler
from apache_beam.internal.util import insert_values_in_args
from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.pvalue import SideInputData, TaggedOutput
from apache_beam.runners import common
from apache_beam.runners.worker import bundle_processor, operation_specs, operations
from apache_beam.transforms import core
from apache_beam.transforms.sideinputs import get_sideinput_index
from apache_beam.transforms.window import GlobalWindow, TimestampedValue
from apache_beam.utils.windowed_value import PANE_INFO_UNKNOWN, WindowedValue

from arcbeam.harness.blocks import Block, Each
from arcbeam.harness.operations import BlockOperation, longest_of
from arcbeam.harness.windowing import Windows, create_window_into

PAR_DO_URN = common_urns.primitives.PAR_DO.urn
_OURS = {
    PAR_DO_URN: "arcbeam:transform:values:v1",
    common_urns.primitives.FLATTEN.urn: "arcbeam:transform:flatten:v1",
    common_urns.primitives.ASSIGN_WINDOWS.urn: "arcbeam:transform:window_into:v1",
}
_SIDE_INPUT = "arcbeam:side_input:"
_SPECIAL = (TimestampedValue, WindowedValue, TaggedOutput)
_MOST_KINDS = 1000
_GLOBAL = GlobalWindow()
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
            payload.state_specs
            or payload.timer_family_specs
            or payload.restriction_coder_id
            or payload.requests_finalization
            or payload.requires_stable_input
            or payload.requires_time_sorted_input
        )
        if needs or len(transform.outputs) != 1 or len(transform.inputs) != 1 + len(payload.side_inputs):
            return
        # SUBTLE: the SDK finds out by the URN which inputs are side inputs, and feeds all others to `process`.
        for tag in payload.side_inputs:
            transform.annotations[_SIDE_INPUT + tag] = transform.inputs.pop(tag).encode()
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


def _with_arguments(call: Any, args: list[Any], kwargs: dict[str, Any], *, unpack: bool) -> Callable[[Any], Any]:
    if unpack:
        return lambda value: call(*value, *args, **kwargs)
    if len(args) == 1 and not kwargs:
        (only,) = args
        return lambda value: call(value, only)
    return lambda value: call(value, *args, **kwargs)


@dataclass(frozen=True, slots=True)
class Given:
    """What user code is given beside an element.

    Attributes:
        args: positional arguments, side inputs as the SDK's placeholders.
        kwargs: the same by name.
        sides: the SDK's maps of side inputs, by window, in the order of the placeholders.
        windowing: of the output.
    """

    args: list[Any]
    kwargs: dict[str, Any]
    sides: list[Any]
    windowing: Any

    @property
    def anything(self) -> bool:
        """Whether there is something."""
        return bool(self.args or self.kwargs)

    @property
    def windowed(self) -> bool:
        """Whether it depends on the element's window."""
        return not all(side.is_globally_windowed() for side in self.sides)


class ValueOperation(BlockOperation):
    """A DoFn that looks at the value only."""

    def __init__(self, name: Any, spec: Any, factory: Any, input_coder: Any, fn: Any, given: Given) -> None:
        super().__init__(name, spec, factory, input_coder)
        self._fn, self._given, self._windowing = fn, given, given.windowing
        found = unwrapped(fn.process)
        self._kind: str
        self._user: Callable[..., Any]
        self._kind, self._user = ("flat", fn.process) if found is None else found
        self._call = self._user
        self._run: Callable[[Block], None] = {
            "flat": self._flat,
            "map": self._map,
            "tuple": self._map if given.anything else self._map_tuple,
            "filter": self._filter,
        }[self._kind]
        self._estimate_output = spec.output_coders[0].get_impl().estimate_size
        self._windows = Windows(given.windowing.windowfn)
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
                self._given.args,
                self._given.kwargs,
                self._given.sides,
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
                if isinstance(self._fn, core.CallableWrapperDoFn) or isgeneratorfunction(self._fn.process)
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
                if not self._given.anything or self._bind(block):
                    self._run(block)
                else:
                    for element in block.elements():
                        self._runner.process(element)
            except BaseException as e:
                # SUBTLE: as the SDK does it, the message says which step; one that says it already stays as it is.
                self._runner._reraise_augmented(e)

    def _bind(self, block: Block) -> bool:
        """Fills in what user code is given beside a value; False if that is not the same for the whole block."""
        given = self._given
        window: Any = _GLOBAL
        if given.windowed:
            if type(block.windows) is Each or len(block.windows) != 1:
                return False
            (window,) = block.windows
        args, kwargs = insert_values_in_args(given.args, given.kwargs, [side[window] for side in given.sides])
        self._call = _with_arguments(self._user, args, kwargs, unpack=self._kind == "tuple")
        return True

    def reset(self) -> None:
        """See the SDK's `Operation`."""
        super().reset()
        for side in self._given.sides:
            side.reset()

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
        process, longest = self._call, self._longest
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


def _create_par_do(factory: Any, transform_id: str, transform: Any, payload: Any, consumers: Any) -> Any:
    serialized = core.DoFnInfo.from_runner_api(payload.do_fn, factory.context).serialized_dofn_data()
    fn, args, kwargs, _, windowing = pickler.loads(serialized)
    if not _is_value_only(fn):
        for tag in payload.side_inputs:
            transform.inputs[tag] = transform.annotations[_SIDE_INPUT + tag].decode()
        create_sdk, _ = bundle_processor.BeamTransformFactory._known_urns[PAR_DO_URN]
        return create_sdk(factory, transform_id, transform, payload, consumers)
    (pcoll,) = transform.inputs.values()
    if not windowing:
        windowing = factory.context.windowing_strategies.get_by_id(
            factory.descriptor.pcollections[pcoll].windowing_strategy_id
        )
    spec = operation_specs.WorkerDoFn(
        serialized_fn=serialized,
        output_tags=list(transform.outputs),
        input=None,
        side_inputs=None,
        output_coders=list(factory.get_output_coders(transform).values()),
    )
    given = Given(list(args), dict(kwargs), _side_inputs(factory, transform_id, transform, payload), windowing)
    name = common.NameContext(transform.unique_name, transform_id)
    op = ValueOperation(name, spec, factory, _windowed(factory, pcoll), fn, given)
    return factory.augment_oldstyle_op(op, transform.unique_name, consumers, spec.output_tags)


def _side_inputs(factory: Any, transform_id: str, transform: Any, payload: Any) -> list[Any]:
    """The SDK's maps of a transform's side inputs, in the order of their placeholders."""
    return [
        bundle_processor.StateBackedSideInputMap(
            factory.state_handler,
            transform_id,
            tag,
            SideInputData.from_runner_api(payload.side_inputs[tag], factory.context),
            _windowed(factory, transform.annotations[_SIDE_INPUT + tag].decode()),
        )
        for tag in sorted(payload.side_inputs, key=get_sideinput_index)
    ]


def _is_value_only(fn: Any) -> bool:
    signature = common.DoFnSignature(fn)
    process = signature.process_method
    return not (
        any(map(_asks_for_more, process.defaults))
        or not fn._process_defined
        or fn._process_batch_defined
        or signature.process_batch_method.defaults
        or signature.is_stateful_dofn()
        or signature.is_splittable_dofn()
        or getattr(process.method_value, "_beam_yields_batches", False)
        or getattr(fn, "_runtime_output_constraints", None)
    )


def _asks_for_more(default: Any) -> bool:
    """Whether a parameter's default is one of those by which user code asks for something beside the value."""
    kind = default if isinstance(default, type) else type(default)
    return issubclass(kind, core._DoFnParam)


def _windowed(factory: Any, pcoll: str) -> WindowedValueCoder:
    return factory.get_windowed_coder(pcoll)


def _create_flatten(factory: Any, transform_id: str, transform: Any, payload: Any, consumers: Any) -> Any:
    (output,) = transform.outputs.values()
    spec = operation_specs.WorkerFlatten(None, [factory.get_only_output_coder(transform)])
    name = common.NameContext(transform.unique_name, transform_id)
    op = FlattenOperation(name, spec, factory, _windowed(factory, output))
    return factory.augment_oldstyle_op(op, transform.unique_name, consumers)


def register() -> None:
    """Teaches the SDK's factory our operations. Idempotent."""
    for urn, parameter, creator in (
        (PAR_DO_URN, runner_pb.ParDoPayload, _create_par_do),
        (common_urns.primitives.FLATTEN.urn, None, _create_flatten),
        (common_urns.primitives.ASSIGN_WINDOWS.urn, runner_pb.WindowingStrategy, create_window_into),
    ):
        bundle_processor.BeamTransformFactory.register_urn(_OURS[urn], parameter)(creator)
