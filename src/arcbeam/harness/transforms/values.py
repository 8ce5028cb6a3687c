"""Transforms that read only the value, run block by block.

Owns their operation: a tight loop calls user code for the values of a block. Timestamps, windows and panes stay
unchanged. `harness.transforms.vectorization` selects the transforms; several consecutive ones share one
loop (`harness.transforms.chains`). A contract test covers the SDK internals that this module relies on.

Side inputs are looked up once for a block whose elements are all in one window. An output that is more than a value (a
`TimestampedValue`, a `WindowedValue`, a `TaggedOutput`) is passed on by the SDK, with all other outputs of its block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from inspect import isgeneratorfunction
from itertools import chain, compress, count, islice, repeat
from typing import Any, Protocol

from apache_beam.internal.util import insert_values_in_args
from apache_beam.metrics import monitoring_infos
from apache_beam.runners import common
from apache_beam.runners.worker import operations
from apache_beam.transforms import core
from apache_beam.transforms.window import GlobalWindow

from arcbeam.harness.encoding.blocks import Block, Each, SameKeyBlock
from arcbeam.harness.operations.blockoperation import PIECE, BlockOperation, dofn_runner, piece_after
from arcbeam.harness.transforms.outputs import OutputBlocks

_GLOBAL = GlobalWindow()
_LIFE = {name: getattr(core.DoFn, name) for name in ("setup", "start_bundle", "finish_bundle", "teardown")}


# Recognizing user code.


def _probe(x: Any) -> Any:
    return x


def _code(transform: Any) -> Any:
    return transform.fn.process.__code__


_WRAPPERS = {
    # For a function that may take more arguments, the SDK's wrapper passes on further arguments; there are none.
    "map": (_code(core.Map(_probe)), _code(core.Map(min))),
    "tuple": (_code(core.MapTuple(_probe)),),
    "filter": (_code(core.Filter(_probe)),),
}


def unwrapped(process: Any) -> tuple[str, Callable[..., Any]] | None:
    """Return the function that the SDK's Map, MapTuple or Filter has wrapped, with the kind; None for all others."""
    code: Any = getattr(process, "__code__", None)
    kind = next((kind for kind, codes in _WRAPPERS.items() if code in codes), None)
    return None if kind is None else (kind, process.__closure__[code.co_freevars.index("fn")].cell_contents)


def has_life(fn: Any) -> bool:
    """Return whether a DoFn overrides a lifecycle method: setup, teardown, or the start or end of a bundle."""
    return any(getattr(getattr(fn, name), "__func__", None) is not method for name, method in _LIFE.items())


def _with_arguments(call: Any, args: list[Any], kwargs: dict[str, Any], *, unpack: bool) -> Callable[[Any], Any]:
    if unpack:
        return lambda value: call(*value, *args, **kwargs)
    if len(args) == 1 and not kwargs:
        (only,) = args
        return lambda value: call(value, only)
    return lambda value: call(value, *args, **kwargs)


def _stopped(error: RuntimeError) -> BaseException | None:
    """Return the StopIteration of user code that caused an error in `ValueOperation._results`; None if none did."""
    cause = error.__cause__
    if not isinstance(cause, StopIteration) or cause.__traceback__ is None:
        return None
    # SUBTLE: a generator of user code that raises a StopIteration ends with the same error; that one is correct.
    return cause if cause.__traceback__.tb_frame.f_code is ValueOperation._results.__code__ else None


@dataclass(frozen=True, slots=True)
class ExtraArguments:
    """The arguments of user code besides the element.

    Attributes:
        args: positional arguments, with the SDK's placeholders for side inputs.
        kwargs: keyword arguments, likewise.
        sides: the SDK's maps of side inputs, by window, in the order of the placeholders.
        windowing: windowing of the output.
    """

    args: list[Any]
    kwargs: dict[str, Any]
    sides: list[Any]
    windowing: Any

    @property
    def anything(self) -> bool:
        """Whether there are any."""
        return bool(self.args or self.kwargs)

    @property
    def windowed(self) -> bool:
        """Whether they depend on the element's window."""
        return not all(side.is_globally_windowed() for side in self.sides)


class Loop(Protocol):
    """A fast path through several consecutive operations; see `harness.transforms.chains`."""

    def takes(self, block: Block) -> bool:
        """Return whether the loop can process a block."""
        ...

    def run(self, block: Block) -> None:
        """Process a block for which `takes` is true."""
        ...

    def milliseconds_of(self, op: ValueOperation) -> int:
        """Return an operation's share of the loop's time in the bundle."""
        ...


class ValueOperation(BlockOperation):
    """A DoFn that reads only the value.

    Attributes:
        kind: "map", "tuple", "filter", or "flat" for a function that returns any number of outputs.
        generates: whether user code is a generator function.
        user: user code, called with a value and the bound arguments.
        bound_args: positional arguments besides the value, since the last `bind`.
        bound_kwargs: keyword arguments, likewise.
        call: user code with bound arguments, called with a value.
        run: calls user code for each value of a block, and passes on the outputs.
        out: passes on outputs.
        chain: the loop that begins with this operation.
        chains: all loops that it has been a part of.
        never_chained: whether it has output more than values, so that it must end a loop.
    """

    def __init__(self, name: Any, spec: Any, factory: Any, input_coder: Any, fn: Any, given: ExtraArguments) -> None:
        super().__init__(name, spec, factory, input_coder)
        self._fn, self._given, self._windowing = fn, given, given.windowing
        found = unwrapped(fn.process)
        self.kind: str
        self.user: Callable[..., Any]
        self.kind, self.user = ("flat", fn.process) if found is None else found
        self.generates = self.kind == "flat" and isgeneratorfunction(self.user)
        self.call = self.user
        self.bound_args, self.bound_kwargs = given.args, given.kwargs
        self._bound_in: set[Any] = set()
        self.chain: Loop | None = None
        self.chains: list[Loop] = []
        self.never_chained = False
        self.run: Callable[[Block], None] = {
            "flat": self._flat,
            "map": self._map,
            "tuple": self._map if given.anything else self._map_tuple,
            "filter": self._filter,
        }[self.kind]
        if type(fn) is core._KeyWithNone:
            self.run = self._with_none
        (coder,) = spec.output_coders
        self.out = OutputBlocks(lambda block: self._emit(block), given.windowing.windowfn, coder)

    def setup(self, data_sampler: Any = None) -> None:
        """See the SDK's `Operation`."""
        with self.scoped_start_state:
            super().setup(data_sampler)
            receivers = operations._TaggedReceivers(self.counter_factory, self.name_context.logging_name())
            receivers[None] = self.receivers[0]
            receivers[self.spec.output_tags[0]] = self.receivers[0]
            self._tagged_receivers = receivers
            outputs = self._windowing.windowfn, self.receivers[0], receivers, None, None, False, False
            self._sdk_outputs = common._OutputHandler(*outputs)
            # If a DoFn is a class and not a generator, the SDK checks what it returns for its first element.
            self._refuse = (
                None
                if isinstance(self._fn, core.CallableWrapperDoFn) or self.generates
                else common._OutputHandler(*outputs, True).handle_process_outputs
            )
            self._has_life = has_life(self._fn)
            if self._has_life:
                self._runner.setup()
        self._emit = self._outputs[0].emit

    def start(self) -> None:
        """See the SDK's `Operation`."""
        with self.scoped_start_state:
            super().start()
            if self._has_life:
                self._runner.start()

    def finish(self) -> None:
        """See the SDK's `Operation`."""
        super().finish()
        if self._has_life:
            with self.scoped_finish_state:
                self._runner.finish()

    def teardown(self) -> None:
        """See the SDK's `Operation`."""
        if self._has_life:
            with self.scoped_finish_state:
                self._runner.teardown()

    @cached_property
    def _runner(self) -> Any:
        """The SDK's runner of the DoFn: for lifecycle methods, elements outside of blocks, and texts of errors.

        Creating it takes a millisecond, and functions that are called block by block do not need it.
        """
        given = self._given
        return dofn_runner(
            self, self._fn, given.args, given.kwargs, given.sides, self._windowing, self._tagged_receivers
        )

    def _take(self, block: Block) -> None:
        with self.scoped_process_state:
            try:
                if self.chain is not None and self.chain.takes(block):
                    self.chain.run(block)
                elif self.bind(block):
                    self.run(block)
                else:
                    for element in block.elements():
                        self._runner.process(element)
            except BaseException as e:
                self.reraise(e)

    def reraise(self, error: BaseException) -> None:
        """Raise an error of user code. The message names the transform, as in the SDK.

        An exception that already names it is raised unchanged.
        """
        self._runner._reraise_augmented(error)

    def bind(self, block: Block) -> bool:
        """Bind the arguments besides the value; return False if they are not the same for the whole block."""
        given = self._given
        if not given.anything:
            return True
        window = self._window_of(block)
        if window is None:
            return False
        args, kwargs = insert_values_in_args(given.args, given.kwargs, [side[window] for side in given.sides])
        self.bound_args, self.bound_kwargs = args, kwargs
        self.call = _with_arguments(self.user, args, kwargs, unpack=self.kind == "tuple")
        if given.sides:
            self._bound_in.add(window)
        return True

    def was_bound(self, block: Block) -> bool:
        """Return whether `bind` would look up no new side input."""
        return not self._given.sides or self._window_of(block) in self._bound_in

    def _window_of(self, block: Block) -> Any:
        """Return the window for looking up side inputs; None if it is not the same for the whole block."""
        if not self._given.windowed:
            return _GLOBAL
        return None if type(block.windows) is Each or len(block.windows) != 1 else block.windows[0]

    # For chains.

    @property
    def has_begun(self) -> bool:
        """Whether the special treatment of the first value is done."""
        return self._refuse is None

    @property
    def is_warm(self) -> bool:
        """Whether the first outputs, which always leave one by one, have left."""
        return self._outputs[0].is_warm

    def only_consumer(self) -> ValueOperation | None:
        """Return the only consumer of the outputs, if it is of this class; None otherwise."""
        taker = self._outputs[0].only_taker
        return taker if isinstance(taker, ValueOperation) else None

    def count(self, elements: int, sample: Any) -> None:
        """Count elements that have left in a chain; `sample` is the last of them, or None."""
        self._outputs[0].count(elements, sample)

    def is_plain(self, output: Any) -> bool:
        """Return whether an output is a plain value."""
        return self.out.are_plain([output])

    def hand_on_special(self, element: Any, output: Any) -> None:
        """Pass on an output that is more than a value; `element` has the time and windows of its input."""
        self._sdk_outputs.handle_process_outputs(element, (output,))

    def execution_time_monitoring_infos(self, transform_id: str) -> dict[Any, Any]:
        """See the SDK's `Operation`. Includes this operation's share of the time of loops."""
        infos: dict[Any, Any] = super().execution_time_monitoring_infos(transform_id)
        more = sum(chain.milliseconds_of(self) for chain in self.chains)
        if not more:
            return infos
        changed = {}
        for info in infos.values():
            if info.urn in (monitoring_infos.PROCESS_BUNDLE_MSECS_URN, monitoring_infos.TOTAL_MSECS_URN):
                spent = monitoring_infos.extract_counter_value(info) + more
                info = monitoring_infos.int64_counter(info.urn, spent, ptransform=transform_id)
            changed[monitoring_infos.to_key(info)] = info
        return changed

    def reset(self) -> None:
        """See the SDK's `Operation`."""
        super().reset()
        self._bound_in.clear()
        for side in self._given.sides:
            side.reset()

    # Each of these calls user code for every value, and passes on what it returns.

    def _map(self, block: Block) -> None:
        # SUBTLE: no `map`, for which a StopIteration of user code is the end, not an error.
        call = self.call
        self._by_parts(block, lambda values: [call(value) for value in values])

    def _map_tuple(self, block: Block) -> None:
        call = self.call
        self._by_parts(block, lambda values: [call(*value) for value in values])

    def _by_parts(self, block: Block, made_of: Callable[[list[Any]], list[Any]]) -> None:
        """Create one output for each value; in parts, if the outputs are much larger than the values."""
        values, total, start = block.values, len(block), 0
        while start < total:
            stop = min(total, start + self.out.longest)
            outputs: list[Any] = []
            piece = PIECE
            while True:
                first = start + len(outputs)
                outputs += made_of(values[first : min(first + piece, stop)])
                made, piece = start + len(outputs), piece_after(outputs[-1])
                if made == stop or len(outputs) >= self.out.most_like(outputs[-1]):
                    break
            self.put_out((block if made - start == total else block.slice(start, made)).with_values(outputs))
            start = made

    def _filter(self, block: Block) -> None:
        call, values = self.call, block.values
        flags = [call(value) for value in values]
        chosen = block.compress(list(compress(values, flags)), flags)
        if block.plain:
            self.out.hand_on(chosen)
        else:
            self.put_out(chosen)

    def _flat(self, block: Block) -> None:
        # Generators follow each other without a Python step between their outputs.
        more = chain.from_iterable(self._generators(block) if self.generates else self._results(block))
        made: list[Any] = []
        piece = PIECE
        while True:
            before, room = len(made), max(1, min(piece, self.out.longest - len(made)))
            try:
                made += islice(more, room)
            except RuntimeError as e:
                raise _stopped(e) or e from None
            if len(made) - before < room:
                break
            last = made[-1] if block.uniform else made[-1][0]
            piece = piece_after(last)
            if len(made) >= min(self.out.longest, self.out.most_like(last)):
                self._put_out_made(made, block)
                made = []
        if made:
            self._put_out_made(made, block)

    def _with_none(self, block: Block) -> None:
        """Process the SDK's function before each global combine, which sets keys to None."""
        self._emit(SameKeyBlock.of_values(None, block))

    def _generators(self, block: Block) -> Iterator[Iterable[Any]]:
        """Yield what a generator function returns for each value; with its place, if elements differ."""
        # `map` loses no StopIteration here: calling a generator function runs none of its code.
        found = map(self.call, block.values)
        return found if block.uniform else map(zip, found, map(repeat, count()))

    def _results(self, block: Block) -> Iterator[Iterable[Any]]:
        """Yield the same for other functions, which return an iterable or None."""
        call, uniform = self.call, block.uniform
        places = iter(range(len(block)))
        values = iter(block.values)
        for place in places if self._refuse is not None else ():
            results = call(next(values))
            if isinstance(results, str | bytes | dict) and self._refuse is not None:
                self._refuse(block.element(place), results)
            self._refuse = None
            if results is not None:
                yield results if uniform else zip(results, repeat(place))
            break
        if uniform:
            for value in values:
                results = call(value)
                if results is not None:
                    yield results
            return
        for place, value in zip(places, values, strict=True):
            results = call(value)
            if results is not None:
                yield zip(results, repeat(place))

    def _put_out_made(self, made: list[Any], block: Block) -> None:
        if block.uniform:
            self.put_out(block.pick(made, []))
        else:
            self.put_out(block.pick([output for output, _ in made], [place for _, place in made]))

    def put_out(self, block: Block) -> None:
        """Pass on a block whose values are outputs of user code."""
        outputs = block.values
        if not self.out.put_out(block):
            handle = self._sdk_outputs.handle_process_outputs
            if block.uniform:
                handle(block.element(0), outputs)
            else:
                for element in block.elements():
                    handle(element, (element.value,))


class FlattenOperation(BlockOperation):
    """Passes on the elements of all inputs."""

    def process(self, o: Any) -> None:
        """Process one windowed value."""
        with self.scoped_process_state:
            self.output(o)

    def _take(self, block: Block) -> None:
        with self.scoped_process_state:
            self._outputs[0].emit(block)
