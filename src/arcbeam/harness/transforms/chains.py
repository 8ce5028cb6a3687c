"""Several consecutive transforms that read only the value, as one compiled loop.

Owns the loop: which operations share one, its source, and its reports: how many elements left each transform, which of
them failed, counted or logged something, and how its time is divided. The operations stay unchanged
(`harness.transforms.values`) and do what the loop does not: the first elements; one block in some, to sample sizes and
times; blocks whose elements differ in time, window or pane; outputs that are more than a value.
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
from arcbeam.harness.operations.blockoperation import PIECE, once, piece_after
from arcbeam.harness.operations.whereabouts import here, place_of
from arcbeam.harness.transforms.values import ValueOperation
from arcbeam.sizes import threshold

_BLOCK_ELEMENTS_MIN = threshold(32)
"""Blocks shorter than this are not worth the preparations for a loop."""
_SAMPLED_EVERY = threshold(32, 2)
"""One block in this number goes through the operations one by one, to sample sizes and times."""

_numbers = itertools.count()


def join(operations: Iterable[ValueOperation]) -> None:
    """Assign chains to operations that are set up, and replace existing ones.

    Args:
        operations: of one stage; producers before consumers.
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
    """Return the next operation that may share the loop; None if there is none."""
    last = row[-1]
    # The outputs of a "flat" operation for a value may have any length, so it ends a loop.
    following = None if last.never_chained or last.kind == "flat" else last.only_consumer()
    # Consecutive generators are faster than a loop that calls them: see `ValueOperation`.
    return None if following is None or following.generates else following


class Chain:
    """A loop over the values of a block, for several operations.

    Invariant: elements keep their order. An output that is more than a value ends the loop. Earlier outputs are passed
    on first. Then this output and all later values are processed without the loop, and the chain is rebuilt to end at
    that operation.

    Args:
        members: at least two operations; only the last may be of the kind "flat".
    """

    def __init__(self, members: list[ValueOperation]) -> None:
        self._members = members
        self._head, self._tail = members[0], members[-1]
        self._loop, lines = _compiled(members)
        self._locator = _Locator(self._loop.__code__, lines, self._head)
        self._state = self._head.state_sampler.scoped_state(
            _Where(self._locator), f"chain-{next(_numbers)}", metrics_container=_Metrics(self._locator)
        )
        self._place = place_of("one of " + ", ".join(str(op.name_context.step_name) for op in members))
        self._fallen: tuple[int, Any] | None = None
        self._blocks = 0
        self._falls = [self._fall_of(place) for place in range(len(members))]
        for op in members:
            op.chains.append(self)

    def takes(self, block: Block) -> bool:
        """Return whether the loop can process a block."""
        if len(block) < _BLOCK_ELEMENTS_MIN or not block.uniform or here.careful:
            return False
        if not all(op.has_begun for op in self._members) or not all(op.is_warm for op in self._members[:-1]):
            return False
        # SUBTLE: a side input must be looked up only when an element reaches its transform: it may be unavailable, and
        # no element may ever arrive.
        if not all(op.was_bound(block) for op in self._members[1:]):
            return False
        self._blocks += 1
        return self._blocks % _SAMPLED_EVERY != 0 and all(op.bind(block) for op in self._members)

    def run(self, block: Block) -> None:
        """Run the loop over a block.

        Raises:
            Exception: user code has raised. As in the SDK, the message names the transform.
        """
        # Restored by the code that has passed the block to the first operation.
        here.enter(self._place)
        self._outputs = outputs = _Outputs(self._tail, block)
        self._element = block.element(0)
        # The loop's local variables for each operation, in the order of `_names`.
        self._bound = [
            each
            for op, fell in zip(self._members, self._falls, strict=True)
            for each in (op.user, op.out.plain_type, op.out.plain_types, fell, op.bound_kwargs, *op.bound_args)
        ]
        self._counts = [0] * (len(self._members) - 1)
        self._samples: list[Any] = [None] * (len(self._members) - 1)
        done, least = 0, 1
        with self._state:
            try:
                while done < len(block) and self._fallen is None:
                    # The outputs of a "flat" operation are checked as they arrive.
                    room = len(block) if self._tail.kind == "flat" else max(least, outputs.room())
                    before = outputs.taken
                    done += self._run(block.values[done : done + room])
                    # If filters pass nothing, there is nothing to check after each value.
                    least = min(2 * room, PIECE) if outputs.taken == before else 1
            except BaseException as e:
                self._locator.failed(e).reraise(e)
            self._count()
            outputs.hand_on()
        if self._fallen is not None:
            self._continue_without(block, done)

    def _continue_without(self, block: Block, done: int) -> None:
        """Process an output that is more than a value, and all later values, without the loop."""
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
            """Return whether an output is more than a value, and record it."""
            if op.is_plain(output):
                return False
            self._fallen = place, output
            return True

        return fell

    def _run(self, values: list[Any]) -> int:
        """Run the loop over values, and record what leaves each operation but the last.

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
                self._counts[place] += count
                self._samples[place] = samples[place]
        self._outputs.look()
        return taken

    def _fell_at(self, place: int) -> bool:
        return self._fallen is not None and self._fallen[0] == place

    def _count(self) -> None:
        """Count what has left each operation but the last, for the whole block."""
        for place, op in enumerate(self._members[:-1]):
            sample = None if self._fell_at(place) else self._element.with_value(self._samples[place])
            op.count(self._counts[place], sample)

    def milliseconds_of(self, op: ValueOperation) -> int:
        """Return an operation's share of the loop's time, in proportion to the time that each takes outside of it."""
        total: int = self._state.sampled_msecs_int()
        weights: list[int] = [member.scoped_process_state.nsecs for member in self._members]
        if not any(weights):
            weights = [1] * len(weights)
        ends = [total * done // sum(weights) for done in itertools.accumulate(weights, initial=0)]
        place = self._members.index(op)
        return ends[place + 1] - ends[place]


class _Outputs:
    """Outputs of a chain, collected into blocks."""

    def __init__(self, tail: ValueOperation, block: Block) -> None:
        self._tail, self._block = tail, block
        self._longest = tail.out.longest
        self._emitted = 0
        self.values: list[Any] = []
        self._piece = PIECE
        self._due = self.room()

    @property
    def taken(self) -> int:
        """How many outputs have arrived."""
        return self._emitted + len(self.values)

    def room(self) -> int:
        """Return how many outputs may arrive until the next check."""
        return max(1, min(self._piece, self._longest - len(self.values)))

    def take(self, results: Any) -> None:
        """Take the outputs of the last operation, of the kind "flat", for one value."""
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
        """Pass on the collected outputs, if they are enough."""
        values = self.values
        if not values:
            return
        self._piece = piece_after(values[-1])
        if len(values) >= min(self._longest, self._tail.out.most_like(values[-1])):
            self.hand_on()
        self._due = len(values) + self.room()

    def hand_on(self) -> None:
        """Pass on the collected outputs."""
        if self.values:
            block = self._block.pick(self.values.copy(), [])
            # SUBTLE: the loop holds the list's `append`, so the list must not be replaced.
            self._emitted += len(block)
            self.values.clear()
            try:
                self._tail.put_out(block)
            except BaseException as e:
                self._tail.reraise(e)
            self._longest = self._tail.out.longest


# The source of the loop.

_Counts = tuple[tuple[int, ...], tuple[Any, ...]]

_inputs: weakref.WeakKeyDictionary[CodeType, list[str]] = weakref.WeakKeyDictionary()
"""For each line of a loop: the variable that is passed to its operation."""


def input_at(code: CodeType, line: int) -> str:
    """Return the variable with the input of a line's operation; "" if the code is not a loop's."""
    names = _inputs.get(code, ())
    return names[line - 1] if 0 < line <= len(names) else ""


def _compiled(members: list[ValueOperation]) -> tuple[Callable[..., _Counts], list[ValueOperation]]:
    """Return the loop's function, and the operation of each of its lines.

    The function takes an iterator of values, the operations' variables, and two functions for outputs of the last
    operation: one for a value, and one for the results of a "flat" operation. For all operations but the last it
    returns how many elements each filter has passed, and the latest output of each operation.
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
    # With the name of this module: frames of the loop belong to the harness, and are hidden from users.
    scope: dict[str, Any] = {"__name__": __name__}
    exec(compile("\n".join(text), "arcbeam/harness/chain", "exec"), scope)
    _inputs[scope["loop"].__code__] = given_to
    return scope["loop"], lines


def _names(place: int, op: ValueOperation) -> list[str]:
    args = [f"a{place}_{n}" for n in range(len(op.bound_args))]
    return [f"f{place}", f"kind{place}", f"plain{place}", f"fell{place}", f"k{place}", *args]


# Attribution to operations.


class _Locator:
    """Determines the running operation from the current line of the loop."""

    def __init__(self, code: CodeType, lines: list[ValueOperation], head: ValueOperation) -> None:
        self._code, self._lines, self._head = code, lines, head

    def now(self, frame: FrameType | None = None) -> ValueOperation:
        """Return the operation whose user code is running, on this thread or in a frame."""
        frame = frame or sys._getframe()
        while frame is not None:
            if frame.f_code is self._code:
                return self._lines[frame.f_lineno - 1]
            frame = frame.f_back
        return self._head

    def failed(self, error: BaseException) -> ValueOperation:
        """Return the operation whose user code has raised."""
        for frame, line in traceback.walk_tb(error.__traceback__):
            if frame.f_code is self._code:
                return self._lines[line - 1]
        return self._head


class _Where(NameContext):  # type: ignore[misc]  # Beam is untyped
    """The name of the running transform, for users of the SDK's state sampler."""

    def __init__(self, locator: _Locator) -> None:
        self._locator = locator

    def step_name_in(self, frame: FrameType) -> Any:
        """Return the name of the transform that runs in a frame of another thread."""
        return self._locator.now(frame).name_context.step_name

    @property
    def step_name(self) -> Any:
        """See the SDK's `NameContext`."""
        return self._locator.now().name_context.step_name

    @property
    def transform_id(self) -> Any:
        """See the SDK's `NameContext`."""
        return self._locator.now().name_context.transform_id


class _Metrics(MetricsContainer):  # type: ignore[misc]  # Beam is untyped
    """The metrics of the running transform, so that updates by user code are attributed to it."""

    def __init__(self, locator: _Locator) -> None:
        super().__init__("")
        self._locator = locator

    def get_metric_cell(self, metric_key: Any) -> Any:
        """See the SDK's `MetricsContainer`."""
        return self._locator.now().metrics_container.get_metric_cell(metric_key)
