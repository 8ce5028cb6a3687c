"""Conversion of Beam's windows to spans, the form that is used in names.

Owns what is known of a window's start and end, the distances between windows, and how merging windows are kept.
"""

from __future__ import annotations

from typing import Any

from apache_beam.coders.coders import IntervalWindowCoder
from apache_beam.transforms import window
from typing_extensions import override

from arcbeam.io.parts.naming import GLOBAL, Span, Template, span_of_other


def span_of(of: Any, coder: Any) -> Span:
    """Return the span of a window. Windows of a user-defined type are distinguished by their encoding."""
    kind = type(of)
    if kind is window.IntervalWindow:
        return Span(of.start.micros, of.end.micros)
    if kind is window.GlobalWindow:
        return GLOBAL
    return span_of_other(of.end.micros, coder.encode(of))


def check_template(template: Template, windowfn: Any) -> None:
    """Check that a template's names are unique for the windows of a window function.

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


class AssignedWindows(window.WindowFn):  # type: ignore[misc]  # Beam is untyped
    """Keeps elements in their windows, which merge like those of another function.

    That function cannot assign the windows again: a chunk has the time of its window's end, not the times of its
    records.

    Args:
        of: the function that has assigned the windows.
    """

    def __init__(self, of: Any) -> None:
        self._of = of

    @override
    def assign(self, context: Any) -> list[Any]:
        return [context.window]

    @override
    def merge(self, context: Any) -> None:
        self._of.merge(context)

    @override
    def is_merging(self) -> bool:
        merges: bool = self._of.is_merging()
        return merges

    @override
    def get_window_coder(self) -> Any:
        return self._of.get_window_coder()

    def __eq__(self, other: object) -> bool:
        return type(other) is AssignedWindows and self._of == other._of

    def __hash__(self) -> int:
        return hash((AssignedWindows, self._of))
