"""Fast creation and reading of the SDK's timestamps, without the checks of its constructor: each element has several.

Relies on the attributes of the SDK's `Timestamp`. A contract test checks that the results are equal.
"""

from __future__ import annotations

from typing import Any, Final

from apache_beam.utils.timestamp import Timestamp

_new: Final = object.__new__
_SECOND: Final = 1_000_000
_PRECISION: Final = Timestamp.MICROS_PRECISION


def timestamp_of(micros: int) -> Any:
    """Return `Timestamp(micros=micros)`, for microseconds in the SDK's range."""
    made = _new(Timestamp)
    made._precision = _PRECISION
    made._seconds, made._subseconds = divmod(micros, _SECOND)
    return made


def micros_from(time: Any) -> int:
    """Return `time.micros`."""
    if time._precision == _PRECISION:
        micros: int = time._seconds * _SECOND + time._subseconds
        return micros
    return int(time.micros)
