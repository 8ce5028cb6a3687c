"""The parameters of a stateful DoFn's methods besides the element.

Owns reading signatures, as the SDK reads them. `harness.stateful.statefuloperation` fills in the values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from apache_beam.runners import common
from apache_beam.transforms import core

DoFn = core.DoFn

_FILLED = (
    DoFn.ElementParam,
    DoFn.KeyParam,
    DoFn.WindowParam,
    DoFn.WindowedValueParam,
    DoFn.TimestampParam,
    DoFn.PaneInfoParam,
    DoFn.SideInputParam,
)


def is_filled(default: Any) -> bool:
    """Return whether `ProcessArguments` can fill a parameter with this default."""
    if isinstance(default, DoFn.StateParam | DoFn.TimerParam):
        return True
    kind = default if isinstance(default, type) else type(default)
    return not issubclass(kind, core._DoFnParam) or default in _FILLED


@dataclass(frozen=True, slots=True)
class ProcessArguments:
    """How `process` is called.

    Attributes:
        method: user code.
        args: positional arguments, with placeholders for values that are filled in.
        kwargs: keyword arguments, likewise.
        states: (place, state spec).
        timers: (place, timer spec).
        keys, windows: places of values that are the same for all elements of a key and window.
        elements, timestamps, panes, whole: places of values that differ from element to element.
    """

    method: Callable[..., Any]
    args: list[Any]
    kwargs: dict[str, Any]
    states: list[tuple[int, Any]]
    timers: list[tuple[int, Any]]
    keys: list[int]
    windows: list[int]
    elements: list[int]
    timestamps: list[int]
    panes: list[int]
    whole: list[int]

    @staticmethod
    def of(method: Any, args: list[Any], kwargs: dict[str, Any]) -> ProcessArguments:
        """Read the signature of `process`.

        Args:
            method: the SDK's wrapper of it.
            args: its positional arguments besides the element, with the SDK's placeholders for side inputs.
            kwargs: its keyword arguments, likewise.
        """
        placeholders, with_places, kwargs = common._get_arg_placeholders(method, args, kwargs)

        def places(param: Any) -> list[int]:
            return [place for place, wanted in placeholders if wanted == param]

        return ProcessArguments(
            method.method_value,
            with_places,
            kwargs,
            [(place, p.state_spec) for place, p in placeholders if isinstance(p, DoFn.StateParam)],
            [(place, p.timer_spec) for place, p in placeholders if isinstance(p, DoFn.TimerParam)],
            places(DoFn.KeyParam),
            places(DoFn.WindowParam),
            places(DoFn.ElementParam),
            places(DoFn.TimestampParam),
            places(DoFn.PaneInfoParam),
            places(DoFn.WindowedValueParam),
        )


@dataclass(frozen=True, slots=True)
class TimerArguments:
    """How the method of a timer family is called: all arguments are keyword arguments.

    Attributes:
        method: user code.
        states: (name, state spec).
        timers: (name, timer spec).
        handles: whether there are states or timers.
        keys, windows, timestamps, tags: names of parameters.
    """

    method: Callable[..., Any]
    states: list[tuple[str, Any]]
    timers: list[tuple[str, Any]]
    handles: bool
    keys: list[str]
    windows: list[str]
    timestamps: list[str]
    tags: list[str]

    @staticmethod
    def of(method: Any) -> TimerArguments:
        """Read the signature of a timer's method; `method` is the SDK's wrapper of it."""
        named = list(zip(method.args[-len(method.defaults) :], method.defaults, strict=True)) if method.defaults else []

        def names(*params: Any) -> list[str]:
            # As in the SDK: if several parameters have the same default, the last one gets the value.
            return [name for name, wanted in named if any(wanted == param for param in params)][-1:]

        states = [(name, p.state_spec) for name, p in named if isinstance(p, DoFn.StateParam)]
        timers = [(name, p.timer_spec) for name, p in named if isinstance(p, DoFn.TimerParam)]
        return TimerArguments(
            method.method_value,
            states,
            timers,
            bool(states or timers),
            names(DoFn.KeyParam),
            names(DoFn.WindowParam, DoFn.WindowedValueParam),
            names(DoFn.TimestampParam),
            names(DoFn.DynamicTimerTagParam),
        )
