"""Beam's windows as names tell them.

Owns what is known of a window's start and end, and of how far windows are apart.
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
