"""Beam's windows as names tell them.

Owns what is known of a window's start and end, of how far windows are apart, and how those that merge are kept.
"""

from __future__ import annotations

from typing import Any

from apache_beam.coders.coders import IntervalWindowCoder
from apache_beam.transforms import window

from arcbeam.io.parts.naming import GLOBAL, Span, Template, span_of_other


def span_of(of: Any, coder: Any) -> Span:
    """A window; its coder tells apart those of a user's own kind."""
    kind = type(of)
    if kind is window.IntervalWindow:
        return Span(of.start.micros, of.end.micros)
    if kind is window.GlobalWindow:
        return GLOBAL
    return span_of_other(of.end.micros, coder.encode(of))


def check_template(template: Template, windowfn: Any) -> None:
    """Looks whether the windows of a function are told apart by their names.

    Raises:
        ValueError: they are not.
    """
    match windowfn:
        case window.GlobalWindows():
            template.check_windows(0, True)
        case window.FixedWindows():
            template.check_windows(windowfn.size.micros, True)
        case window.SlidingWindows():
            template.check_windows(windowfn.period.micros, True)
        case _:
            template.check_windows(None, isinstance(windowfn.get_window_coder(), IntervalWindowCoder))


class Kept(window.WindowFn):  # type: ignore[misc]  # Beam is untyped
    """Leaves elements in the windows in which they are, which merge as those of another function do.

    That function cannot assign them again: a chunk has the time of its window's end, and not those of its records.

    Args:
        of: the function that has assigned them.
    """

    def __init__(self, of: Any) -> None:
        self._of = of

    def assign(self, context: Any) -> list[Any]:
        """See `WindowFn`."""
        return [context.window]

    def merge(self, context: Any) -> None:
        """See `WindowFn`."""
        self._of.merge(context)

    def is_merging(self) -> bool:
        """See `WindowFn`."""
        merges: bool = self._of.is_merging()
        return merges

    def get_window_coder(self) -> Any:
        """See `WindowFn`."""
        return self._of.get_window_coder()

    def __eq__(self, other: object) -> bool:
        return type(other) is Kept and self._of == other._of

    def __hash__(self) -> int:
        return hash((Kept, self._of))
