"""Durations as users pass them.

Owns which values are accepted, and the message for all others. Must not know what the durations are used for.
"""

from __future__ import annotations

from datetime import timedelta

from apache_beam.utils.timestamp import Duration


def micros_of(transform: str, name: str, span: Duration | timedelta | float) -> int:
    """Convert a duration to microseconds.

    Args:
        transform: the name of the transform that takes the argument.
        name: the argument's name.
        span: seconds, a Duration, or a timedelta.

    Raises:
        ValueError: the value has another type, or is not finite. The message names the argument.
    """
    seconds = span.total_seconds() if isinstance(span, timedelta) else span
    try:
        if isinstance(seconds, bool | str):
            raise TypeError
        micros: int = Duration.of(seconds).micros
    except (TypeError, ValueError, OverflowError):
        shown = f"{span!r}"[:100]
        raise ValueError(
            f"{transform}({name}={shown}): expected a duration: a number of seconds, a Duration or a timedelta (ten "
            "minutes are 600)"
        ) from None
    return micros
