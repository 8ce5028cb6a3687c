"""What reading needs of a cluster: protocols, which tests implement without a broker, and errors that end a job.

Must not know Beam nor librdkafka.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from arcbeam.errors import SetupError
from arcbeam.io.kafka.connection import ClientConnection
from arcbeam.io.kafka.partitions import Partition
from arcbeam.io.kafka.trouble import ClientTrouble


class OffsetsGoneError(SetupError, RuntimeError):
    """Records that were not read yet do not exist any more."""


class TopicGoneError(SetupError, RuntimeError):
    """A topic was deleted, or created again under the same name."""


def recreated(topic: str, before: str, now: str) -> TopicGoneError:
    """Return the error for a topic that was created again.

    Args:
        topic: its name.
        before: the id of the topic that the job has read.
        now: the id of the new one.
    """
    return TopicGoneError(
        f"Kafka: the topic {topic} was deleted and created again while this job reads it (its id was {before} and is "
        f"{now}): the offsets that the job has stored belong to the old topic. Start a new job to read the new one"
    )


def deleted(topic: str) -> TopicGoneError:
    """Return the error for a topic that was deleted."""
    return TopicGoneError(f"Kafka: the topic {topic} is read by this job, but was deleted")


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a fetch has brought.

    Attributes:
        records: librdkafka's messages, in order.
        position: the offset after them, and after offsets without readable records that follow them.
    """

    records: Sequence[Any]
    position: int


@dataclass(frozen=True, slots=True)
class PartitionEnd:
    """The end of a partition at a moment.

    Attributes:
        offset: the offset after the last record, also if that is in an open transaction.
        requested: a moment before the broker has answered, in seconds since 1970. Records after the end are later.
    """

    offset: int
    requested: float


class PartitionReader(Protocol):
    """Reads a partition.

    Attributes:
        unanswered: why the last question for its end was not answered.
        has_answered: whether anything has come since it was fetched from where it is read, perhaps only that there is
            nothing.
    """

    unanswered: str

    @property
    def has_answered(self) -> bool:
        """See the attributes."""

    def fetch(self, position: int, most: int, seconds: float = 0.0) -> Fetched:
        """Return records from an offset on: those that have come already.

        Args:
            position: the offset.
            most: number of records.
            seconds: how long to wait if none has come. A bundle waits for a limited time in all.

        Raises:
            OffsetsGoneError: they do not exist any more.
        """

    def is_quiet(self, position: int) -> bool:
        """Return whether nothing has come that a fetch from an offset would return or raise."""

    def rest(self) -> None:
        """Do not fetch the partition until the next call of `fetch`: nothing is expected."""

    def end(self, now: float, oldest: float) -> PartitionEnd | None:
        """Return the end; None if no broker answers.

        Args:
            now: seconds since 1970.
            oldest: the same; an answer that is not older may be used again.
        """

    def give_back(self, fetched: Fetched) -> None:
        """Keep what was not used, for the next fetch."""

    def commit(self, position: int) -> None:
        """Commit an offset of the consumer group. Errors are reported, not raised."""


class Readers(Protocol):
    """The readers of all partitions that a process reads. They share their connections."""

    def reader(self, partition: Partition) -> PartitionReader:
        """Return the reader of a partition."""

    def begin(self) -> None:
        """Begin a bundle: the time for which its readers wait is limited."""

    def close(self) -> None:
        """Release the connections."""


class GroupAccount(Protocol):
    """Who reads, and how; see `Clients`."""

    @property
    def connection(self) -> ClientConnection:
        """How to connect."""

    @property
    def committed(self) -> bool:
        """Whether to read only records of committed transactions."""

    @property
    def group(self) -> str:
        """The consumer group; "" if there is none."""

    def trouble(self) -> ClientTrouble:
        """Return what reports the trouble of a new client."""


class TopicCluster(Protocol):
    """Answers questions about topics."""

    def topics(self, names: Sequence[str] | None) -> Mapping[str, tuple[str, int]]:
        """Return ids and numbers of partitions of topics.

        Args:
            names: of topics, which perhaps do not exist; None: all but internal ones.

        Raises:
            ConnectionError: no broker answers.
        """

    def offsets(self, partitions: Sequence[tuple[str, int]], where: str | int, *, committed: bool) -> list[int]:
        """Return an offset of each partition.

        Args:
            partitions: topics and numbers.
            where: "earliest": the first record that exists; "latest"; "group": else as "earliest"; or milliseconds
                since 1970: the first record of this time or a later one.
            committed: whether "latest" leaves out open transactions.

        Raises:
            ConnectionError: no broker answers.
        """

    def close(self) -> None:
        """Release the connection."""
