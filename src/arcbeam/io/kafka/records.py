"""Records as a pipeline sees them, and how bytes become values.

Owns the two forms of a record, and records that cannot be decoded. Must not know clients' errors, nor event times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from apache_beam.utils.timestamp import Timestamp

from arcbeam.model import texts

Deserializer = Callable[[bytes | None], Any]
"""Returns a value for the bytes of a key or value. None: there are none; a value without bytes is a tombstone."""


class KafkaRecord(NamedTuple):
    """A record with all that Kafka knows of it.

    Attributes:
        topic: the topic.
        partition: the number of its partition.
        offset: its offset.
        time: append time or create time, as the topic has it; None if it has none.
        key: decoded.
        value: decoded.
        headers: pairs of a name and bytes; names may be repeated.
    """

    topic: str
    partition: int
    offset: int
    time: Timestamp | None
    key: Any
    value: Any
    headers: tuple[tuple[str, bytes | None], ...] = ()


class Undecodable(NamedTuple):
    """A record that a deserializer has refused.

    Attributes:
        record: the record; key and value are bytes.
        error: the error, as text.
    """

    record: KafkaRecord
    error: str


class UndecodableError(ValueError):
    """A record cannot be decoded, and the pipeline has no output for such records."""


def whole(message: Any, key: Any, value: Any) -> KafkaRecord:
    """Return a message of librdkafka as a record."""
    kind, milliseconds = message.timestamp()
    return KafkaRecord(
        message.topic(),
        message.partition(),
        message.offset(),
        Timestamp(micros=milliseconds * 1_000) if kind else None,
        key,
        value,
        tuple(message.headers() or ()),
    )


class Decoder:
    """Decodes messages of librdkafka.

    Args:
        key: decodes keys; None: they stay bytes.
        value: decodes values; None: they stay bytes.
        metadata: whether the output is `KafkaRecord`s instead of pairs.
        errors: whether records that cannot be decoded are returned apart. Otherwise they raise an error.
    """

    def __init__(self, key: Deserializer | None, value: Deserializer | None, *, metadata: bool, errors: bool) -> None:
        self._key, self._value, self._metadata, self._errors = key, value, metadata, errors

    def decoded(self, messages: Sequence[Any]) -> tuple[list[Any], list[Any], list[tuple[Any, Undecodable]]]:
        """Decode messages.

        Returns:
            The messages that were decoded, what became of them, and all others with their errors.

        Raises:
            ConnectionError: a decoder cannot connect to what it needs.
            UndecodableError: one cannot be decoded, and there is no output for errors.
        """
        if self._key is None and self._value is None and not self._metadata:
            return list(messages), [(message.key(), message.value()) for message in messages], []
        good: list[Any] = []
        outputs: list[Any] = []
        bad: list[tuple[Any, Undecodable]] = []
        for message in messages:
            key, value = message.key(), message.value()
            try:
                if self._key is not None:
                    key = self._key(key)
                if self._value is not None:
                    value = self._value(value)
            except ConnectionError:
                # Not the record's fault: what its decoder needs does not answer.
                raise
            except Exception as e:
                error = f"{type(e).__name__}: {texts.safe_text(str, e)}"
                if not self._errors:
                    raise UndecodableError(
                        f"Kafka, {message.topic()}[{message.partition()}]: the record at offset {message.offset()} "
                        f"cannot be decoded: {error}. Correct the deserializer, or use "
                        "ReadFromKafka(with_errors=True), which gives such records an output of their own. A stream "
                        "continues if you run the corrected script with the same --checkpoint_dir; `arcbeam resume` "
                        "would run the stored pipeline"
                    ) from e
                bad.append((message, Undecodable(whole(message, message.key(), message.value()), error)))
                continue
            good.append(message)
            outputs.append(whole(message, key, value) if self._metadata else (key, value))
        return good, outputs, bad

    def set_up(self) -> None:
        """Prepare the deserializers in a process that reads."""
        for each in self._both():
            if hasattr(each, "set_up"):
                each.set_up()

    def _both(self) -> Iterable[Any]:
        return (each for each in (self._key, self._value) if each is not None)
