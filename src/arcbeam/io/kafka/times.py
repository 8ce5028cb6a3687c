"""Event times of records, and the watermark of a partition.

Owns which time a record has, and what a record and an idle partition promise. Must not know clients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from apache_beam.utils.timestamp import Timestamp

from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, MIN_TIMESTAMP

APPENDED, CREATED, PROCESSED = "LogAppendTime", "CreateTime", "ProcessingTime"
POLICIES: Final = (APPENDED, CREATED, PROCESSED)
EventTime = Callable[[Any], Any]
"""Returns the time of a record: a Timestamp, or seconds since 1970."""
_APPEND: Final = 2
"""librdkafka's code for a broker's time."""


@dataclass(frozen=True, slots=True)
class EventTimes:
    """How event times are found.

    Attributes:
        policy: one of `POLICIES`, or a function of the output.
        delay: by how much a record may be earlier than others before it, in microseconds.
        idle: whether an idle partition follows the clock.
    """

    policy: str | EventTime
    delay: int
    idle: bool

    def of(self, messages: Sequence[Any], outputs: Sequence[Any], now: int) -> list[int]:
        """Return event times in microseconds.

        Args:
            messages: librdkafka's, at least one.
            outputs: what the pipeline gets of them.
            now: the clock, in microseconds.

        Raises:
            ValueError: a record has no such time.
        """
        if self.policy == PROCESSED:
            return [now] * len(messages)
        if not isinstance(self.policy, str):
            times = [Timestamp.of(self.policy(output)).micros for output in outputs]
            for time, message in zip(times, messages, strict=True):
                if not MIN_TIMESTAMP <= time <= END_OF_GLOBAL_WINDOW:
                    raise ValueError(f"{_named(message)}: its event time {time} µs is not one of Beam's")
            return times
        stamps = [message.timestamp() for message in messages]
        appended = self.policy == APPENDED
        for (kind, milliseconds), message in zip(stamps, messages, strict=True):
            if (appended and kind != _APPEND) or milliseconds < 0:
                raise ValueError(
                    f"{_named(message)} has no {self.policy}: set message.timestamp.type={self.policy} for its topic, "
                    "or use another timestamp_policy of ReadFromKafka"
                )
        return [milliseconds * 1_000 for _, milliseconds in stamps]

    def after(self, times: Sequence[int]) -> int:
        """Return the watermark that records allow, in microseconds."""
        return max(MIN_TIMESTAMP, max(times) - self.delay)

    def while_idle(self, now: int) -> int | None:
        """Return the watermark of a partition that had no further record at a moment; None if it says nothing."""
        return max(MIN_TIMESTAMP, now - self.delay) if self.idle else None


def _named(message: Any) -> str:
    return f"Kafka, {message.topic()}[{message.partition()}]: the record at offset {message.offset()}"
