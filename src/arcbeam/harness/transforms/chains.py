"""Several transforms in a row that look at nothing but the value, as one compiled loop.

Owns the loop: which operations share one, its source text, and what is told of it: how many elements left each
transform, which of them failed, counted or logged something, and how its time is shared out. The operations stay what
they are (`harness.transforms.values`) and do what the loop does not: the first elements, and one block in some, whose
sizes and times are sampled; blocks whose elements differ in time, window or pane; outputs that are more than a value.
"""

from __future__ import annotations

import itertools
import sys
import traceback
import weakref
from collections.abc import Callable, Iterable
from itertools import islice
from types import CodeType, FrameType
from typing import Any

from apache_beam.metrics.execution import MetricsContainer
from apache_beam.runners.common import NameContext

from arcbeam.harness.encoding.blocks import Block
from arcbeam.harness.operations.blockoperation import PIECE, once, piece_behind
from arcbeam.harness.operations.whereabouts import here, place_of
from arcbeam.harness.transforms.values import ValueOperation
from arcbeam.sizes import threshold

_SHORTEST = threshold(32)
"""Blocks shorter than this are not worth the preparations of a loop."""
_APART = threshold(32, 2)
"""One block in so many goes through the operations one by one: sizes and times are sampled there."""

_numbers = itertools.count()


def join(operations: Iterable[ValueOperation]) -> None:
    """Gives chains to operations that are set up, in place of those they have.

    Args:
        operations: of one stage; of two that follow each other, the first comes first.
    """
    members: set[int] = set()
    for op in operations:
        op.chain = None
        if id(op) in members:
            continue
        row = [op]
        while (following := _following(row)) is not None:
            row.append(following)
        if len(row) > 1:
            members.update(map(id, row))
            op.chain = Chain(row)


def _following(row: list[ValueOperation]) -> ValueOperation | None:
    """The operation that may share a loop with those before it."""
    last = row[-1]
    # What a "flat" one puts out for a value may have any length: it ends a loop.
    following = None if last.never_chained or last.kind == "flat" else last.only_consumer()
    # Generators follow each other faster than a loop could call them: see `ValueOperation`.
    return None if following is None or following.generates else following


class Chain:
    """A loop over the values of a block, for several operations.

    Invariant: elements keep their order. An output that is more than a value ends the loop: what came before goes out,
    then that output and what is behind it go the ordinary way, and the chain ends there from the next block on.

    Args:
        members: at least two; only the last may be of the kind "flat".
    """

    def __init__(self, members: list[ValueOperation]) -> None:
        self._members = members
        self._head, self._tail = members[0], members[-1]
        self._loop, lines = _compiled(members)
        self._teller = _Teller(self._loop.__code__, lines, self._head)
        self._state = self._head.state_sampler.scoped_state(
            _Where(self._teller), f"chain-{next(_numbers)}", metrics_container=_Metrics(self._teller)
        )
        self._place = place_of("one of " + ", ".join(str(op.name_context.step_name) for op in members))
        self._fallen: tuple[int, Any] | None = None
        self._blocks = 0
        self._falls = [self._fall_of(place) for place in range(len(members))]
        for op in members:
            op.chains.append(self)

    def takes(self, block: Block) -> bool:
        """Whether a block is one for the loop."""
        if len(block) < _SHORTEST or not block.uniform or here.careful:
            return False
        if not all(op.has_begun for op in self._members) or not all(op.is_warm for op in self._members[:-1]):
            return False
        # SUBTLE: a side input is looked up for the first time when an element comes to its step, not before: it may be
        # one that cannot be had, and no element may ever come.
        if not all(op.was_bound(block) for op in self._members[1:]):
            return False
        self._blocks += 1
        return self._blocks % _APART != 0 and all(op.bind(block) for op in self._members)

    def run(self, block: Block) -> None:
        """Runs the loop over a block.

        Raises:
            Exception: what user code has raised, as the SDK has it: with the step's name.
        """
        # Undone by who has handed the block to the first operation.
        here.enter(self._place)
        self._outputs = outputs = _Outputs(self._tail, block)
        self._element = block.element(0)
        # The loop's local variables for each operation, in the order of `_names`.
        self._bound = [
            each
            for op, fell in zip(self._members, self._falls, strict=True)
            for each in (op.user, op.out.plain_type, op.out.plain_types, fell, op.bound_kwargs, *op.bound_args)
        ]
        self._told = [0] * (len(self._members) - 1)
        self._samples: list[Any] = [None] * (len(self._members) - 1)
        done, least = 0, 1
        with self._state:
            try:
                while done < len(block) and self._fallen is None:
                    # A "flat" operation's outputs are looked at as they come.
                    room = len(block) if self._tail.kind == "flat" else max(least, outputs.room())
                    before = outputs.taken
                    done += self._run(block.values[done : done + room])
                    # Where filters let nothing through, there is nothing to look at behind each value.
                    least = min(2 * room, PIECE) if outputs.taken == before else 1
            except BaseException as e:
                self._teller.failed(e).reraise(e)
            self._count()
            outputs.hand_on()
        if self._fallen is not None:
            self._go_on_without(block, done)

    def _go_on_without(self, block: Block, done: int) -> None:
        """An output was more than a value: goes on with it, and with what is behind it, the ordinary way."""
        place, output = self._fallen or (0, None)
        op = self._members[place]
        try:
            op.hand_on_special(self._element, output)
        except BaseException as e:
            op.reraise(e)
        op.never_chained = True
        join(self._members)
        if done < len(block):
            self._head.run(block.slice(done, None))

    def _fall_of(self, place: int) -> Callable[[Any], bool]:
        op = self._members[place]

        def fell(output: Any) -> bool:
            """Whether an output is more than a value; that is noted then."""
            if op.is_plain(output):
                return False
            self._fallen = place, output
            return True

        return fell

    def _run(self, values: list[Any]) -> int:
        """Runs the loop over some values, and notes what leaves each operation but the last.

        Returns:
            How many of the values were taken.
        """
        rest = iter(values)
        passed, samples = self._loop(rest, self._bound, self._outputs.values.append, self._outputs.take)
        taken = count = len(values) - (0 if self._fallen is None else len(list(rest)))
        counts = iter(passed)
        for place, op in enumerate(self._members[:-1]):
            count = next(counts) if op.kind == "filter" else count - self._fell_at(place)
            if count:
                self._told[place] += count
                self._samples[place] = samples[place]
        self._outputs.look()
        return taken

    def _fell_at(self, place: int) -> bool:
        return self._fallen is not None and self._fallen[0] == place

    def _count(self) -> None:
        """Counts what left each operation but the last, for the whole block."""
        for place, op in enumerate(self._members[:-1]):
            sample = None if self._fell_at(place) else self._element.with_value(self._samples[place])
            op.count(self._told[place], sample)

    def milliseconds_of(self, op: ValueOperation) -> int:
        """An operation's share of the loop's time, by the time that each takes outside of it."""
        total: int = self._state.sampled_msecs_int()
        weights: list[int] = [member.scoped_process_state.nsecs for member in self._members]
        if not any(weights):
            weights = [1] * len(weights)
        ends = [total * done // sum(weights) for done in itertools.accumulate(weights, initial=0)]
        place = self._members.index(op)
        return ends[place + 1] - ends[place]


class _Outputs:
    """What leaves a chain, on its way into blocks."""

    def __init__(self, tail: ValueOperation, block: Block) -> None:
        self._tail, self._block = tail, block
        self._longest = tail.out.longest
        self._gone = 0
        self.values: list[Any] = []
        self._piece = PIECE
        self._due = self.room()

    @property
    def taken(self) -> int:
        """How many outputs came."""
        return self._gone + len(self.values)

    def room(self) -> int:
        """How many outputs may come until the next look at them."""
        return max(1, min(self._piece, self._longest - len(self.values)))

    def take(self, results: Any) -> None:
        """Takes what the last operation, of the kind "flat", has put out for one value."""
        if type(results) is list and len(results) < PIECE:
            self.values += results
            if len(self.values) >= self._due:
                self.look()
            return
        more, values = once(results), self.values
        while True:
            due = self._due
            values += islice(more, max(1, due - len(values)))
            if len(values) < due:
                return
            self.look()

    def look(self) -> None:
        """Hands on what there is, if it is enough."""
        values = self.values
        if not values:
            return
        self._piece = piece_behind(values[-1])
        if len(values) >= min(self._longest, self._tail.out.most_like(values[-1])):
            self.hand_on()
        self._due = len(values) + self.room()

    def hand_on(self) -> None:
        """Hands on what there is."""
        if self.values:
            block = self._block.pick(self.values.copy(), [])
            # SUBTLE: the loop holds the list's `append`.
            self._gone += len(block)
            self.values.clear()
            try:
                self._tail.put_out(block)
            except BaseException as e:
                self._tail.reraise(e)
            self._longest = self._tail.out.longest


# The loop's text.

_Told = tuple[tuple[int, ...], tuple[Any, ...]]

_inputs: weakref.WeakKeyDictionary[CodeType, list[str]] = weakref.WeakKeyDictionary()
"""Of each line of a loop: the variable that its operation was given."""


def input_at(code: CodeType, line: int) -> str:
    """The variable of a loop that has what the operation of a line was given; "" if the code is no loop's."""
    names = _inputs.get(code, ())
    return names[line - 1] if 0 < line <= len(names) else ""


def _compiled(members: list[ValueOperation]) -> tuple[Callable[..., _Told], list[ValueOperation]]:
    """The loop's function, and the operation of each of its lines.

    The function takes an iterator of values, the operations' variables, and what to do with each output of the last
    operation: with a value, and with the results of one of the kind "flat". For all operations but the last it returns
    how many elements each filter let through, and the latest output of each operation.
    """
    head, tail = members[0], members[-1]
    text: list[str] = []
    lines: list[ValueOperation] = []
    given_to: list[str] = []
    x = ""

    def add(op: ValueOperation, *new: str) -> None:
        text.extend(new)
        lines.extend([op] * len(new))
        given_to.extend([x] * len(new))

    inner = range(len(members) - 1)
    filters = [place for place in inner if members[place].kind == "filter"]
    add(head, "def loop(values, bound, append, take):")
    add(head, f" {', '.join(name for place, op in enumerate(members) for name in _names(place, op))}, = bound")
    add(head, *(f" n{place} = 0" for place in filters), *(f" x{place} = None" for place in inner))
    add(head, " for x in values:")
    x = "x"
    for place, op in enumerate(members):
        given = "".join(f", a{place}_{n}" for n in range(len(op.bound_args)))
        if op.bound_kwargs:
            given += f", **k{place}"
        out = f"x{place}"
        kind = f"type({out})"
        look = f"  if {kind} is not kind{place} and {kind} not in plain{place} and fell{place}({out}): break"
        if op.kind == "filter":
            add(op, f"  if not f{place}({x}{given}): continue", f"  {out} = {x}")
            if op is head:
                add(op, look)
            if op is not tail:
                add(op, f"  n{place} += 1")
        else:
            add(op, f"  {out} = f{place}({'*' if op.kind == 'tuple' else ''}{x}{given})")
            if op is not tail:
                add(op, look)
        taken, x = x, out
    out, x = x, taken
    add(tail, f"  if {out} is not None: take({out})" if tail.kind == "flat" else f"  append({out})")
    passed, samples = "".join(f"n{place}, " for place in filters), "".join(f"x{place}, " for place in inner)
    add(tail, f" return ({passed}), ({samples})")
    # With the name of this module: frames of the loop are the harness's, and are left out of what users see.
    scope: dict[str, Any] = {"__name__": __name__}
    exec(compile("\n".join(text), "arcbeam/harness/chain", "exec"), scope)
    _inputs[scope["loop"].__code__] = given_to
    return scope["loop"], lines


def _names(place: int, op: ValueOperation) -> list[str]:
    args = [f"a{place}_{n}" for n in range(len(op.bound_args))]
    return [f"f{place}", f"kind{place}", f"plain{place}", f"fell{place}", f"k{place}", *args]


# What is told of it.


class _Teller:
    """Knows whose user code runs: the operation of the line at which the loop is."""

    def __init__(self, code: CodeType, lines: list[ValueOperation], head: ValueOperation) -> None:
        self._code, self._lines, self._head = code, lines, head

    def now(self, frame: FrameType | None = None) -> ValueOperation:
        """The operation whose user code is running, on this thread or in that frame."""
        frame = frame or sys._getframe()
        while frame is not None:
            if frame.f_code is self._code:
                return self._lines[frame.f_lineno - 1]
            frame = frame.f_back
        return self._head

    def failed(self, error: BaseException) -> ValueOperation:
        """The operation whose user code has raised."""
        for frame, line in traceback.walk_tb(error.__traceback__):
            if frame.f_code is self._code:
                return self._lines[line - 1]
        return self._head


class _Where(NameContext):  # type: ignore[misc]  # Beam is untyped
    """The name of the step that is running, for whoever asks the SDK's state sampler."""

    def __init__(self, teller: _Teller) -> None:
        self._teller = teller

    def step_name_in(self, frame: FrameType) -> Any:
        """The name of the step that runs in a frame of another thread."""
        return self._teller.now(frame).name_context.step_name

    @property
    def step_name(self) -> Any:
        """See the SDK's `NameContext`."""
        return self._teller.now().name_context.step_name

    @property
    def transform_id(self) -> Any:
        """See the SDK's `NameContext`."""
        return self._teller.now().name_context.transform_id


class _Metrics(MetricsContainer):  # type: ignore[misc]  # Beam is untyped
    """The metrics of the step that is running: what user code updates is its own step's."""

    def __init__(self, teller: _Teller) -> None:
        super().__init__("")
        self._teller = teller

    def get_metric_cell(self, metric_key: Any) -> Any:
        """See the SDK's `MetricsContainer`."""
        return self._teller.now().metrics_container.get_metric_cell(metric_key)
