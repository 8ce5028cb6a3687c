"""Transforms that look at nothing but the value, run block by block.

Owns their operation: user code is called in a tight loop over the values of a block, while timestamps, windows and
panes stay beside them, untouched. Which transforms these are is `harness.transforms.vectorization`'s; several in a row
share one loop (`harness.transforms.chains`). The SDK's internals that are leaned on are held by a contract test.

Side inputs are looked up once for a block whose elements are all in one window. An output that is more than a value (a
`TimestampedValue`, a `WindowedValue`, a `TaggedOutput`) goes the SDK's way, and so does what else its block put out.
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
from arcbeam.harness.operations.blockoperation import PIECE, BlockOperation, dofn_runner, piece_behind
from arcbeam.harness.transforms.outputs import OutputBlocks

_GLOBAL = GlobalWindow()
_LIFE = {name: getattr(core.DoFn, name) for name in ("setup", "start_bundle", "finish_bundle", "teardown")}


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


def has_life(fn: Any) -> bool:
    """Whether a DoFn has more to call than `process`: anything that begins or ends it or a bundle."""
    return any(getattr(getattr(fn, name), "__func__", None) is not method for name, method in _LIFE.items())


def _with_arguments(call: Any, args: list[Any], kwargs: dict[str, Any], *, unpack: bool) -> Callable[[Any], Any]:
    if unpack:
        return lambda value: call(*value, *args, **kwargs)
    if len(args) == 1 and not kwargs:
        (only,) = args
        return lambda value: call(value, only)
    return lambda value: call(value, *args, **kwargs)


def _stopped(error: RuntimeError) -> BaseException | None:
    """The StopIteration that user code has raised, if that is what an error is made of in `ValueOperation._results`."""
    cause = error.__cause__
    if not isinstance(cause, StopIteration) or cause.__traceback__ is None:
        return None
    # SUBTLE: a generator of user code that lets one out ends with the same error, and that is the right one.
    return cause if cause.__traceback__.tb_frame.f_code is ValueOperation._results.__code__ else None


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


class Loop(Protocol):
    """A short cut past several operations in a row, as they know it; see `harness.transforms.chains`."""

    def takes(self, block: Block) -> bool:
        """Whether a block is one for it."""
        ...

    def run(self, block: Block) -> None:
        """Runs a block that it takes."""
        ...

    def milliseconds_of(self, op: ValueOperation) -> int:
        """An operation's share of its time in the bundle."""
        ...


class ValueOperation(BlockOperation):
    """A DoFn that looks at the value only.

    Attributes:
        kind: "map", "tuple", "filter", or "flat" for what returns any number of outputs.
        generates: whether user code is a generator function.
        user: user code, to be called with a value and what is bound.
        bound_args: positional arguments beside the value, as of the last `bind`.
        bound_kwargs: the same by name.
        call: user code with what is bound, to be called with a value.
        run: calls user code for each value of a block, and hands on what comes of it.
        out: hands on what is put out.
        chain: the loop that this operation starts.
        chains: all loops that it has been a part of.
        never_chained: it has put out more than values, so that no other operation may follow in a loop.
    """

    def __init__(self, name: Any, spec: Any, factory: Any, input_coder: Any, fn: Any, given: Given) -> None:
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
            # The SDK looks at what a DoFn returns for its first element, if it is a class's and not a generator.
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
        """The SDK's runner of the DoFn: for its life, for what does not go by blocks, and for the words of errors.

        It takes a millisecond to make, which a function that is called block by block can do without.
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
        """Raises what user code has raised; the message says which step, as the SDK does it.

        An exception that says it already stays as it is.
        """
        self._runner._reraise_augmented(error)

    def bind(self, block: Block) -> bool:
        """Fills in what user code is given beside a value; False if that is not the same for the whole block."""
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
        """Whether `bind` would look up no side input that was not looked up before."""
        return not self._given.sides or self._window_of(block) in self._bound_in

    def _window_of(self, block: Block) -> Any:
        """The window that side inputs are looked up for; None if that is not the same for the whole block."""
        if not self._given.windowed:
            return _GLOBAL
        return None if type(block.windows) is Each or len(block.windows) != 1 else block.windows[0]

    # What a chain asks.

    @property
    def has_begun(self) -> bool:
        """Whether nothing is left that is done for the first value only."""
        return self._refuse is None

    @property
    def is_warm(self) -> bool:
        """Whether the first outputs, which always leave one by one, have left."""
        return self._outputs[0].is_warm

    def only_consumer(self) -> ValueOperation | None:
        """The operation that takes all that leaves here, if there is one, and it is of this class."""
        taker = self._outputs[0].only_taker
        return taker if isinstance(taker, ValueOperation) else None

    def count(self, elements: int, sample: Any) -> None:
        """Counts elements that left in a chain; `sample` is the last of them, or None."""
        self._outputs[0].count(elements, sample)

    def is_plain(self, output: Any) -> bool:
        """Whether an output is no more than a value."""
        return self.out.are_plain([output])

    def hand_on_special(self, element: Any, output: Any) -> None:
        """Hands on an output that is more than a value; `element` has the time and windows of what it is made of."""
        self._sdk_outputs.handle_process_outputs(element, (output,))

    def execution_time_monitoring_infos(self, transform_id: str) -> dict[Any, Any]:
        """See the SDK's `Operation`; with this operation's share of the time of loops."""
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

    # Each of these calls user code for every value, and hands on what it returns.

    def _map(self, block: Block) -> None:
        # SUBTLE: no `map`, to which a StopIteration of user code is the end, not an error.
        call = self.call
        self._by_parts(block, lambda values: [call(value) for value in values])

    def _map_tuple(self, block: Block) -> None:
        call = self.call
        self._by_parts(block, lambda values: [call(*value) for value in values])

    def _by_parts(self, block: Block, made_of: Callable[[list[Any]], list[Any]]) -> None:
        """One output for each value; in parts, if the outputs are much larger than the values."""
        values, total, start = block.values, len(block), 0
        while start < total:
            stop = min(total, start + self.out.longest)
            outputs: list[Any] = []
            piece = PIECE
            while True:
                first = start + len(outputs)
                outputs += made_of(values[first : min(first + piece, stop)])
                made, piece = start + len(outputs), piece_behind(outputs[-1])
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
        # Of generators one follows the other without a step of ours between their outputs.
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
            piece = piece_behind(last)
            if len(made) >= min(self.out.longest, self.out.most_like(last)):
                self._put_out_made(made, block)
                made = []
        if made:
            self._put_out_made(made, block)

    def _with_none(self, block: Block) -> None:
        """What the SDK has before each global combine: keys that are None."""
        self._emit(SameKeyBlock.of_values(None, block))

    def _generators(self, block: Block) -> Iterator[Iterable[Any]]:
        """What a generator function returns for each value; with its place, if elements differ."""
        # No StopIteration is lost in `map`: whoever calls a generator function runs nothing of it.
        found = map(self.call, block.values)
        return found if block.uniform else map(zip, found, map(repeat, count()))

    def _results(self, block: Block) -> Iterator[Iterable[Any]]:
        """The same for other functions, which return any iterable, or None."""
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
        """Hands on a block whose values are what user code has put out."""
        outputs = block.values
        if not self.out.put_out(block):
            handle = self._sdk_outputs.handle_process_outputs
            if block.uniform:
                handle(block.element(0), outputs)
            else:
                for element in block.elements():
                    handle(element, (element.value,))


class FlattenOperation(BlockOperation):
    """Hands on what comes from any input."""

    def process(self, o: Any) -> None:
        """Takes one windowed value."""
        with self.scoped_process_state:
            self.output(o)

    def _take(self, block: Block) -> None:
        with self.scoped_process_state:
            self._outputs[0].emit(block)
