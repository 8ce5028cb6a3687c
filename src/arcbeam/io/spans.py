"""Spans of time as users give them.

Owns which are taken, and what is said of others. Must not know what they are for.
"""

from __future__ import annotations

from datetime import timedelta

from apache_beam.utils.timestamp import Duration


def micros_of(transform: str, name: str, span: Duration | timedelta | float) -> int:
    """A span of time in microseconds.

    Args:
        transform: whose argument it is.
        name: of the argument.
        span: seconds, a Duration, or a timedelta.

    Raises:
        ValueError: it is none of these, or not finite; the argument is named.
    """
    seconds = span.total_seconds() if isinstance(span, timedelta) else span
    try:
        if isinstance(seconds, bool | str):
            raise TypeError
        micros: int = Duration.of(seconds).micros
    except (TypeError, ValueError, OverflowError):
        shown = f"{span!r}"[:100]
        raise ValueError(
            f"{transform}({name}={shown}): a span of time is a number of seconds, a Duration or a timedelta (ten "
            "minutes are 600)"
        ) from None
    return micros
