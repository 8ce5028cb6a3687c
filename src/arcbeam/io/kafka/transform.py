"""`ReadFromKafka`: reads topics without Java.

Owns the arguments that users pass, their checks, and the composition of the DoFns.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, TypeAlias

import apache_beam as beam
from apache_beam.utils.timestamp import Duration, Timestamp
from typing_extensions import override

from arcbeam.io.kafka.clients import Clients
from arcbeam.io.kafka.connection import ClientConnection, Credentials, check_installed, naming_secrets
from arcbeam.io.kafka.discovery import Discover, DiscoverOnce, Wanted, Where
from arcbeam.io.kafka.partitions import Partition
from arcbeam.io.kafka.reading import ERRORS, Read, ReadBounded
from arcbeam.io.kafka.records import Decoder, Deserializer, KafkaRecord, Undecodable
from arcbeam.io.kafka.settings import check_arguments, check_flags, check_function, check_settings
from arcbeam.io.kafka.times import CREATED, POLICIES, EventTimes
from arcbeam.io.spans import micros_of

_NAME: Final = "ReadFromKafka"
_OWNED: Final = {
    "auto.offset.reset": "use start",
    "isolation.level": "use read_committed",
    "enable.auto.commit": "use commit_offset_in_finalize",
    "enable.auto.offset.store": "use commit_offset_in_finalize",
    "enable.partition.eof": "the transform needs it",
    "group.instance.id": "the transform does not join the group",
}
_DELAY: Final = 10.0
"""Seconds by which a record may be earlier than others before it, by default: clocks of producers differ."""

_EARLIEST: Final = 100_000_000
_SECONDS_MAX: Final = 10_000_000_000
"""Times that can be given as numbers: 1973 to 2286. What is later in seconds is within them in milliseconds."""

Position: TypeAlias = str | datetime | Timestamp | float | Mapping[tuple[str, int], int]


class RecordsAndErrors(NamedTuple):
    """The outputs with `with_errors`.

    Attributes:
        records: what was decoded.
        errors: `Undecodable`s.
    """

    records: Any
    errors: Any


class ReadFromKafka(beam.PTransform):  # type: ignore[misc]  # Beam is untyped
    """Read records of topics: `pipeline | ReadFromKafka({"bootstrap.servers": "kafka:9092"}, ["clicks"])`.

    Each record is read once, also after a kill: offsets are part of each commit. The group of the consumer only
    receives them for monitors. It never assigns partitions, so its members in other programs disturb nothing.

    *Partitions.* Each has one reader. Partitions and matching topics that are added later are found within
    `discovery_seconds`, and read from their beginning. A topic that is deleted, or created again under the same name,
    fails the job.

    *The watermark* of a partition is the latest event time of its records, less `max_delay`. A partition that has no
    further record follows the clock, less `max_delay`, also if it never had one. An open transaction counts as a
    further record.

    *Ends.* With `stop` the read is bounded, and runs in batch. Without it the pipeline is a streaming job.

    Args:
        consumer_config: settings of librdkafka without secrets, at least "bootstrap.servers".
        topics: names of topics.
        topic_pattern: instead: a regular expression for whole names. Internal topics are left out. If it matches none,
            the status says so, and a bounded read fails.
        topic_partitions: instead: pairs of a topic and the number of a partition. No others are searched for.
        key_deserializer: a function of a key's bytes (or None). None: keys stay bytes.
        value_deserializer: the same for values. A value of None is a tombstone.
        start: where to begin when the job is new: "earliest"; "latest"; "group" (the offsets of "group.id", else
            earliest); a time (datetime, Timestamp, seconds since 1970): the first record of that time or a later one;
            or offsets by (topic, partition). Offsets that do not exist any more, or not yet, are refused.
        stop: where to end: None (never), "latest" (what exists when the job starts), a time, or offsets. A read waits
            for records that do not exist yet.
        read_committed: whether to leave out records of open and aborted transactions.
        with_metadata: whether elements are `KafkaRecord`s. Otherwise they are pairs (key, value).
        with_errors: whether the result is a pair (records, errors), in which `errors` has each record that cannot be
            decoded as `Undecodable`. Otherwise such a record fails the job.
        timestamp_policy: the event time: "CreateTime", "LogAppendTime" (the broker's clock), "ProcessingTime", or a
            function of an element that returns a Timestamp or seconds since 1970. Beam's default is "ProcessingTime",
            with which results depend on when records are read.
        max_delay: seconds, or a Duration, by which a record may be earlier than another one before it. None: 10, and 0
            for "LogAppendTime" and "ProcessingTime".
        idle_follows_clock: False if event times have nothing to do with the clock, as those of old records. A partition
            without further records then holds the watermark; use `WithWatermark(idle_after=…)` after this.
        commit_offset_in_finalize: whether the offsets of "group.id" are committed after each commit of the job. None:
            if there is a "group.id".
        discovery_seconds: between two searches for partitions. The watermark waits as long for each search, so that
            records of a new partition are not late. None: there is only one search.
        credentials: secret settings: names of environment variables by setting, or a function that returns them.
            Both are read by the processes that connect. The function is stored with the pipeline, so it must read the
            secrets itself, from a file or `os.environ`. It is called once when the pipeline is made, to check this.

    Raises:
        ImportError: the package confluent-kafka is missing.
        TypeError: an argument has the wrong type.
        ValueError: an argument is invalid, or `consumer_config` has a secret.
    """

    def __init__(
        self,
        consumer_config: Mapping[str, Any],
        topics: Sequence[str] | None = None,
        *,
        topic_pattern: str | None = None,
        topic_partitions: Sequence[tuple[str, int]] | None = None,
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
        start: Position = "earliest",
        stop: Position | None = None,
        read_committed: bool = True,
        with_metadata: bool = False,
        with_errors: bool = False,
        timestamp_policy: str | Callable[[Any], Any] = CREATED,
        max_delay: Duration | timedelta | float | None = None,
        idle_follows_clock: bool = True,
        commit_offset_in_finalize: bool | None = None,
        discovery_seconds: float | None = 1.0,
        credentials: Credentials = None,
        label: str | None = None,
        **others: Any,
    ) -> None:
        super().__init__(label)
        check_arguments(_NAME, others, [*inspect.signature(ReadFromKafka).parameters][:-1])
        check_installed(_NAME)
        check_flags(
            _NAME,
            read_committed=read_committed,
            with_metadata=with_metadata,
            with_errors=with_errors,
            idle_follows_clock=idle_follows_clock,
            commit_offset_in_finalize=False if commit_offset_in_finalize is None else commit_offset_in_finalize,
        )
        connection = ClientConnection.checked(f"{_NAME}(consumer_config)", consumer_config, credentials, _OWNED)
        check_settings(f"{_NAME}(consumer_config)", "Consumer", {"group.id": "g", **consumer_config}, credentials)
        group = str(consumer_config.get("group.id", ""))
        commits = bool(group) if commit_offset_in_finalize is None else commit_offset_in_finalize
        if (commits or start == "group") and not group:
            what = "start='group'" if start == "group" else "commit_offset_in_finalize=True"
            raise ValueError(f"{_NAME}({what}) requires the setting 'group.id' in consumer_config")
        self._wanted = _wanted(topics, topic_pattern, topic_partitions, start, stop, read_committed)
        self._clients = Clients(connection, read_committed, group, commits)
        for name, function in (("key_deserializer", key_deserializer), ("value_deserializer", value_deserializer)):
            check_function(_NAME, name, function, "a function of bytes")
        self._decoder = Decoder(key_deserializer, value_deserializer, metadata=with_metadata, errors=with_errors)
        if timestamp_policy not in POLICIES and not callable(timestamp_policy):
            raise ValueError(f"{_NAME}(timestamp_policy={timestamp_policy!r}): expected {POLICIES} or a function")
        clocked = timestamp_policy != CREATED and not callable(timestamp_policy)
        delay = micros_of(_NAME, "max_delay", (0.0 if clocked else _DELAY) if max_delay is None else max_delay)
        if delay < 0:
            raise ValueError(f"{_NAME}(max_delay={max_delay}): a duration must not be negative")
        self._times = EventTimes(timestamp_policy, delay, idle_follows_clock)
        if discovery_seconds is not None and not (
            isinstance(discovery_seconds, int | float) and discovery_seconds is not True and discovery_seconds > 0
        ):
            raise ValueError(f"{_NAME}(discovery_seconds={discovery_seconds!r}): expected a number above 0, or None")
        self._seconds = None if stop is not None or topic_partitions is not None else discovery_seconds
        self._with_errors, self._with_metadata = with_errors, with_metadata
        self._is_raw = key_deserializer is None and value_deserializer is None

    @override
    def expand(self, begin: Any) -> Any:
        bounded = self._wanted.stop is not None
        search, read = (DiscoverOnce, ReadBounded) if bounded else (Discover, Read)
        searching = beam.ParDo(search(self._clients, self._wanted, self._seconds, self._times))
        partitions = begin | "Begin" >> beam.Impulse() | "Partitions" >> searching.with_output_types(Partition)
        reading = beam.ParDo(read(self._clients, self._decoder, self._times)).with_output_types(self._kind())
        if not self._with_errors:
            return partitions | "Read" >> reading
        outputs = partitions | "Read" >> reading.with_outputs(ERRORS, main="records")
        outputs[ERRORS].element_type = Undecodable
        return RecordsAndErrors(outputs.records, outputs[ERRORS])

    def _kind(self) -> Any:
        if self._with_metadata:
            return KafkaRecord
        return tuple[bytes | None, bytes | None] if self._is_raw else tuple[Any, Any]

    @override
    def annotations(self) -> dict[str, Any]:
        return {**super().annotations(), **naming_secrets()}

    @override
    def default_label(self) -> str:
        wanted = self._wanted
        return f"{_NAME}({wanted.pattern or ','.join(wanted.topics or dict(wanted.partitions))})"

    @override
    def display_data(self) -> dict[str, Any]:
        return {"reads": self.default_label(), "servers": str(self._clients.connection.config.get("bootstrap.servers"))}


def _wanted(
    topics: Sequence[str] | None,
    pattern: str | None,
    partitions: Sequence[tuple[str, int]] | None,
    start: Position,
    stop: Position | None,
    committed: bool,
) -> Wanted:
    """Check what to read.

    Raises:
        ValueError: an argument is invalid.
    """
    if sum(each is not None for each in (topics, pattern, partitions)) != 1:
        raise ValueError(f"{_NAME}: give one of topics, topic_pattern and topic_partitions")
    if isinstance(topics, str) or (topics is not None and not topics) or (partitions is not None and not partitions):
        raise ValueError(f"{_NAME}: topics and topic_partitions are lists that are not empty")
    names = tuple(topics or ())
    if bad := [name for name in names if not isinstance(name, str) or not name]:
        raise ValueError(f"{_NAME}(topics): {bad[0]!r} is not the name of a topic")
    _check_once("topics", names)
    if pattern is not None:
        try:
            re.compile(pattern)
        except (re.error, TypeError) as e:
            raise ValueError(f"{_NAME}(topic_pattern={pattern!r}): not a regular expression: {e}") from None
    places = tuple(_place("topic_partitions", place) for place in partitions or ())
    _check_once("topic_partitions", places)
    first = _where("start", start, ("earliest", "latest", "group"))
    last = None if stop is None else _where("stop", stop, ("latest",))
    for argument, where in (("start", first), ("stop", last)):
        if isinstance(where, Mapping) and names and (more := [topic for topic, _ in where if topic not in names]):
            raise ValueError(f"{_NAME}({argument}): the topic {more[0]!r} has an offset, but is not read")
    if isinstance(first, Mapping) and isinstance(last, Mapping):
        for place in first.keys() & last.keys():
            if last[place] < first[place]:
                raise ValueError(f"{_NAME}: stop is {last[place]} for {place}, before start, which is {first[place]}")
    return Wanted(names, pattern or "", places, first, last, committed)


def _place(argument: str, place: Any) -> tuple[str, int]:
    """Return a topic and the number of a partition."""
    match place:
        case (str(topic), int(number)) if number >= 0:
            return topic, number
    raise ValueError(f"{_NAME}({argument}): {place!r} is not a pair of a topic and the number of a partition from 0")


def _check_once(argument: str, values: Sequence[Any]) -> None:
    if twice := [value for n, value in enumerate(values) if value in values[:n]]:
        raise ValueError(f"{_NAME}({argument}): {twice[0]!r} is given twice")


def _where(argument: str, position: Position, words: tuple[str, ...]) -> Where:
    named = f"{_NAME}({argument}={position!r})"
    if isinstance(position, str):
        if position not in words:
            raise ValueError(f"{named}: expected one of {words}, a time, or offsets")
        return position
    if isinstance(position, Mapping):
        for place, offset in position.items():
            if not isinstance(offset, int) or offset < 0:
                raise ValueError(f"{_NAME}({argument}): the offset {offset!r} of {place!r} is not a number from 0")
        if not position:
            raise ValueError(f"{named}: expected offsets by (topic, partition)")
        return {_place(argument, place): int(offset) for place, offset in position.items()}
    if isinstance(position, datetime):
        if position.tzinfo is None:
            raise ValueError(f"{named}: the time has no time zone; use for example datetime(…, tzinfo=timezone.utc)")
        return int(position.timestamp() * 1_000)
    if isinstance(position, int | float) and not isinstance(position, bool):
        return _milliseconds(named, position)
    if not isinstance(position, Timestamp):
        raise TypeError(f"{named}: expected one of {words}, a time, or offsets by (topic, partition)")
    return int(position.micros // 1_000)


def _milliseconds(named: str, seconds: float) -> int:
    """Return a time that is given as a number, in milliseconds; refuse one that is probably something else."""
    if _EARLIEST <= seconds < _SECONDS_MAX:
        return int(Timestamp.of(seconds).micros // 1_000)
    for unit, many in (("milliseconds", 1_000), ("microseconds", 1_000_000), ("nanoseconds", 1_000_000_000)):
        if _EARLIEST <= seconds / many < _SECONDS_MAX:
            raise ValueError(
                f"{named}: a number is a time in seconds since 1970. In {unit} it is {_utc(seconds / many)}; if that "
                f"is intended, divide by {many:,}"
            )
    raise ValueError(
        f"{named}: a number is a time in seconds since 1970, and this one is not between {_utc(_EARLIEST)} and "
        f"{_utc(_SECONDS_MAX)}. For an offset give {{(topic, partition): offset}}; for an early time a Timestamp"
    )


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
