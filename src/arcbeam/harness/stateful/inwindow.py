"""What user code is given for a key in one window: handles on states and timers, and the arguments of `process`.

Owns that they are made once for a key and window, however many elements come, and when what was written is brought to
the storage. Must not know which key is next, nor what user code returns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from apache_beam.internal.util import insert_values_in_args

from arcbeam.harness.encoding.sdktimes import timestamp_of
from arcbeam.harness.state.handles import Cells, Handle, HandleMaker, Place
from arcbeam.harness.state.timers import TimerHandle
from arcbeam.harness.stateful.arguments import ProcessArguments

_NO_KWARGS: Final[dict[str, Any]] = {}


@dataclass(frozen=True, slots=True)
class Provision:
    """What a DoFn's calls are given of, whatever the key.

    Attributes:
        cells: of its states.
        makes: the handles on these.
        timer_infos: where timers of a family go, by name.
        process: how `process` is called.
        sides: the SDK's maps of side inputs.
    """

    cells: Cells
    makes: HandleMaker
    timer_infos: dict[str, Any]
    process: ProcessArguments
    sides: Any


class InWindow(Place):
    """What user code is given for a key in one window.

    Args:
        provision: of the DoFn.
        key, window: whose handles these are.
        fresh: see `Place`.
    """

    __slots__ = ("_args", "_kwargs", "_provision", "_stamp", "_states")

    def __init__(self, provision: Provision, key: Any, window: Any, *, fresh: bool) -> None:
        # There is one of these for each key: a call of the base class's is worth leaving out.
        self._cells, self.key, self.window, self.fresh = provision.cells, key, window, fresh
        self._at = None
        self._provision = provision
        self._states: dict[Any, Handle] = {}
        self._args: list[Any] | None = None
        self._kwargs = _NO_KWARGS
        self._stamp: tuple[Any, Any] | None = None

    def state(self, spec: Any) -> Any:
        """The handle on a state."""
        handle = self._states.get(spec)
        if handle is None:
            handle = self._states[spec] = self._provision.makes.make(spec, self)
        return handle

    def timer(self, spec: Any, micros: int, pane: Any) -> Any:
        """A handle on a timer, as it is given with an element of this time and pane."""
        info = self._provision.timer_infos[spec.name]
        return TimerHandle(info, spec.time_domain, self.key, self.window, micros, pane)

    def process_args(self, micros: int, pane: Any) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of `process`, but for the element."""
        asked, args = self._provision.process, self._args
        if args is None:
            self._args = args = self._bound()
        if self._stamp is None or self._stamp[0] != micros or self._stamp[1] is not pane:
            self._stamp = micros, pane
            for place in asked.timestamps:
                args[place] = timestamp_of(micros)
            for place in asked.panes:
                args[place] = pane
            for place, spec in asked.timers:
                args[place] = self.timer(spec, micros, pane)
        return args, self._kwargs

    def arguments_at(self, pane: Any) -> Callable[[int], list[Any]]:
        """The arguments of `process` behind the element, for elements of one pane, by their times.

        SUBTLE: it is the same list each time, with the same handles on timers: what user code does with these it does
        before the next element comes.
        """
        asked = self._provision.process
        rest = self._bound()[1:]
        self._stamp = None
        handles = [(place - 1, self.timer(spec, 0, pane)) for place, spec in asked.timers]
        for place, handle in handles:
            rest[place] = handle
        times = [place - 1 for place in asked.timestamps]

        def at(micros: int) -> list[Any]:
            for place in times:
                rest[place] = timestamp_of(micros)
            for _, handle in handles:
                handle.given_at(micros)
            return rest

        return at

    def _bound(self) -> list[Any]:
        asked, sides = self._provision.process, self._provision.sides
        args = asked.args.copy()
        self._kwargs = asked.kwargs
        if sides:
            args, self._kwargs = insert_values_in_args(args, asked.kwargs, [side[self.window] for side in sides])
        for place in asked.keys:
            args[place] = self.key
        for place in asked.windows:
            args[place] = self.window
        for place, spec in asked.states:
            args[place] = self.state(spec)
        return args

    def commit(self, *, keep: bool) -> bool:
        """Brings to the storage what was written; whether the storage may have something now. It is the last call."""
        if self._states:
            for handle in self._states.values():
                handle.commit(keep=keep)
            # SUBTLE: handles know this, and this knows them; the collector, which counts objects, comes late.
            self._states = {}
        self._args, self._kwargs = None, _NO_KWARGS
        return keep
