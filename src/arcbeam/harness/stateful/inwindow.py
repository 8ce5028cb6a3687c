"""The arguments of user code for a key in one window: handles of states and timers, and the arguments of `process`.

Owns creating them once for a key and window, however many elements arrive, and writing changes to the storage. Must not
know which key is next, nor what user code returns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from apache_beam.internal.util import insert_values_in_args

from arcbeam.harness.encoding.sdktimes import timestamp_of
from arcbeam.harness.state.handles import CellHandles, Handle, HandleMaker, KeyPlace
from arcbeam.harness.state.timers import TimerHandle
from arcbeam.harness.stateful.arguments import ProcessArguments

_NO_KWARGS: Final[dict[str, Any]] = {}


@dataclass(frozen=True, slots=True)
class FixedArguments:
    """The parts of a DoFn's arguments that do not depend on the key.

    Attributes:
        cells: the cells of its states.
        makes: creates the handles for these.
        timer_infos: the SDK's information on timer families, by name.
        process: how `process` is called.
        sides: the SDK's maps of side inputs.
    """

    cells: CellHandles
    makes: HandleMaker
    timer_infos: dict[str, Any]
    process: ProcessArguments
    sides: Any


class InWindow(KeyPlace):
    """The arguments of user code for a key in one window.

    Args:
        provision: of the DoFn.
        key, window: the key and the window.
        fresh: see `KeyPlace`.
    """

    __slots__ = ("_args", "_kwargs", "_provision", "_stamp", "_states")

    def __init__(self, provision: FixedArguments, key: Any, window: Any, *, fresh: bool) -> None:
        # One is created for each key, so a call of the base class's `__init__` is worth avoiding.
        self._cells, self.key, self.window, self.fresh = provision.cells, key, window, fresh
        self._at = None
        self._provision = provision
        self._states: dict[Any, Handle] = {}
        self._args: list[Any] | None = None
        self._kwargs = _NO_KWARGS
        self._stamp: tuple[Any, Any] | None = None

    def state(self, spec: Any) -> Any:
        """Return the handle of a state."""
        handle = self._states.get(spec)
        if handle is None:
            handle = self._states[spec] = self._provision.makes.make(spec, self)
        return handle

    def timer(self, spec: Any, micros: int, pane: Any) -> Any:
        """Return a timer handle for an element with this time and pane."""
        info = self._provision.timer_infos[spec.name]
        return TimerHandle(info, spec.time_domain, self.key, self.window, micros, pane)

    def process_args(self, micros: int, pane: Any) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments of `process`; the element is filled in by the caller."""
        process, args = self._provision.process, self._args
        if args is None:
            self._args = args = self._bound()
        if self._stamp is None or self._stamp[0] != micros or self._stamp[1] is not pane:
            self._stamp = micros, pane
            for place in process.timestamps:
                args[place] = timestamp_of(micros)
            for place in process.panes:
                args[place] = pane
            for place, spec in process.timers:
                args[place] = self.timer(spec, micros, pane)
        return args, self._kwargs

    def arguments_at(self, pane: Any) -> Callable[[int], list[Any]]:
        """Return a function that gives, for the time of an element, the arguments of `process` after the element.

        All elements must have the same pane. SUBTLE: the function returns the same list each time, with the same timer
        handles. User code is done with them before the next element.
        """
        process = self._provision.process
        rest = self._bound()[1:]
        self._stamp = None
        handles = [(place - 1, self.timer(spec, 0, pane)) for place, spec in process.timers]
        for place, handle in handles:
            rest[place] = handle
        times = [place - 1 for place in process.timestamps]

        def at(micros: int) -> list[Any]:
            for place in times:
                rest[place] = timestamp_of(micros)
            for _, handle in handles:
                handle.given_at(micros)
            return rest

        return at

    def _bound(self) -> list[Any]:
        process, sides = self._provision.process, self._provision.sides
        args = process.args.copy()
        self._kwargs = process.kwargs
        if sides:
            args, self._kwargs = insert_values_in_args(args, process.kwargs, [side[self.window] for side in sides])
        for place in process.keys:
            args[place] = self.key
        for place in process.windows:
            args[place] = self.window
        for place, spec in process.states:
            args[place] = self.state(spec)
        return args

    def commit(self, *, keep: bool) -> bool:
        """Write changes to the storage; return whether it may contain something now. Must be the last call."""
        if self._states:
            for handle in self._states.values():
                handle.commit(keep=keep)
            # SUBTLE: handles and this object reference each other, and the garbage collector would run late.
            self._states = {}
        self._args, self._kwargs = None, _NO_KWARGS
        return keep
