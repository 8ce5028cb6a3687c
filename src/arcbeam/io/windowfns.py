"""Text for window functions: the SDK's have no `repr`.

Owns how a window function is shown. Must not know where the text is used.
"""

from __future__ import annotations

from typing import Any

from apache_beam.utils.timestamp import Duration, Timestamp

from arcbeam.model import texts


def describe(fn: Any) -> str:
    """Return a window function as its constructor call: `FixedWindows(size=60)`. Omit zeros; durations in seconds."""
    if any("__repr__" in vars(each) for each in type(fn).__mro__[:-1]):
        return texts.safe_text(repr, fn, 200)
    values = {name: _value(value) for name, value in vars(fn).items() if not name.startswith("_")}
    facts = [f"{name}={value}" for name, value in values.items() if value != "0"]
    return f"{type(fn).__name__}({', '.join(facts)})"


def _value(value: Any) -> str:
    if isinstance(value, Duration | Timestamp):
        seconds = value.micros / 1_000_000
        return f"{seconds:g}" if seconds == float(f"{seconds:g}") else f"{seconds!r}"
    return texts.safe_text(repr, value, 100)
