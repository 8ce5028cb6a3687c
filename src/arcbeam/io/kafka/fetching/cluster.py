"""Questions to a cluster, asked by librdkafka's administrating client.

Owns their timeouts, and the meaning of librdkafka's errors there. Must not know how records are fetched.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from typing_extensions import override

from arcbeam.io.kafka.fetching.bytime import first_records, settings
from arcbeam.io.kafka.fetching.protocols import GroupAccount, TopicCluster
from arcbeam.io.kafka.trouble import ClientTrouble

_SECONDS: Final = 10.0
"""For a request to a broker."""
_DOWN_SECONDS: Final = 2.0
"""The same, while brokers are known to be down: the micro-batch waits."""
_FIRST_SECONDS: Final = 5.0
"""For the first request of a search. If it fails, the status of a new job soon says why."""
_SHORT: Final = 6
"""In trouble, one of this many requests has the long timeout."""
_NO_RECORD: Final = -1
"""The offset of a time after all records. SUBTLE: if the leader of a partition is down, librdkafka's answer is a lower
number, and not an error.
"""
_MISSING: Final = "UNKNOWN_TOPIC_OR_PART"
_MOMENTARY: Final = frozenset(
    (
        "BROKER_NOT_AVAILABLE",
        "COORDINATOR_LOAD_IN_PROGRESS",
        "COORDINATOR_NOT_AVAILABLE",
        "FENCED_LEADER_EPOCH",
        "KAFKA_STORAGE_ERROR",
        "LEADER_NOT_AVAILABLE",
        "NETWORK_EXCEPTION",
        "NOT_COORDINATOR",
        "NOT_LEADER_FOR_PARTITION",
        "OFFSET_NOT_AVAILABLE",
        "PREFERRED_LEADER_NOT_AVAILABLE",
        "REPLICA_NOT_AVAILABLE",
        "REQUEST_TIMED_OUT",
        "UNKNOWN_LEADER_EPOCH",
        "UNSTABLE_OFFSET_COMMIT",
    )
)
"""Errors of brokers that end by themselves, by name: a partition has a new leader, or is so new that it has none.
librdkafka calls them retriable only in transactions.
"""
UNANSWERED: Final = "the leader of the partition does not answer"


def request_seconds(trouble: ClientTrouble) -> float:
    """Return the timeout of a request. In trouble it is sometimes the long one, too: a broker may be slow, not down."""
    return _DOWN_SECONDS if trouble.now and trouble.failures % _SHORT != _SHORT - 1 else _SECONDS


def administrator(account: GroupAccount, trouble: ClientTrouble) -> Any:
    """Return a new client for questions.

    SUBTLE: after a failure, too. The old one asks the leader of a partition that it knew, until that is up again.
    """
    from confluent_kafka.admin import AdminClient

    return account.connection.made(AdminClient, {"error_cb": trouble.hear})


class LibrdkafkaCluster(TopicCluster):
    """See `TopicCluster`.

    Args:
        account: who reads.
    """

    def __init__(self, account: GroupAccount) -> None:
        self._account = account
        self._trouble = account.trouble()
        self._admin = administrator(account, self._trouble)
        self._is_new = True

    def _timeout(self) -> float:
        is_first, self._is_new = self._is_new, False
        return _FIRST_SECONDS if is_first else request_seconds(self._trouble)

    @override
    def topics(self, names: Sequence[str] | None) -> Mapping[str, tuple[str, int]]:
        from confluent_kafka import KafkaError, TopicCollection

        if names is None:
            listed = self._requested(lambda: self._admin.list_topics(timeout=self._timeout()))
            names = [name for name in listed.topics if not name.startswith("__")]
        if not names:
            return {}
        found = {}
        requested = self._admin.describe_topics(TopicCollection(list(names)), request_timeout=self._timeout())
        for name, future in requested.items():
            with _without(KafkaError.UNKNOWN_TOPIC_OR_PART):
                described = self._requested(future.result, missing=True)
                found[name] = (str(described.topic_id), len(described.partitions))
        return found

    @override
    def offsets(self, partitions: Sequence[tuple[str, int]], where: str | int, *, committed: bool) -> list[int]:
        from confluent_kafka import Consumer, IsolationLevel, TopicPartition
        from confluent_kafka.admin import OffsetSpec

        places = [TopicPartition(*place) for place in partitions]
        if where == "group":
            consumer = self._account.connection.made(Consumer, {"group.id": self._account.group})
            try:
                found = [
                    place.offset for place in self._requested(lambda: consumer.committed(places, timeout=_SECONDS))
                ]
            finally:
                consumer.close()
            without = [place for place, offset in zip(partitions, found, strict=True) if offset < 0]
            begins = iter(self.offsets(without, "earliest", committed=committed) if without else [])
            return [offset if offset >= 0 else next(begins) for offset in found]
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED

        def requested(which: Any) -> list[int]:
            futures = self._admin.list_offsets(
                dict.fromkeys(places, which), isolation_level=level, request_timeout=_SECONDS
            )
            found = [int(self._requested(futures[place].result).offset) for place in places]
            if min(found) < _NO_RECORD:
                self._admin = administrator(self._account, self._trouble)
                raise ConnectionError(f"{self._trouble.servers}: {self._trouble.reason(UNANSWERED)}")
            return found

        if where == "earliest":
            return requested(OffsetSpec.earliest())
        ends = requested(OffsetSpec.latest())
        if where == "latest":
            return ends
        # There is none if all records are earlier.
        at = requested(OffsetSpec.for_timestamp(int(where)))
        firsts = [offset if offset >= 0 else end for offset, end in zip(at, ends, strict=True)]
        ranges = {place: (begin, end) for place, begin, end in zip(partitions, firsts, ends, strict=True)}
        consumer = self._account.connection.made(
            Consumer,
            {**settings(committed), "group.id": self._account.group or "arcbeam", "error_cb": self._trouble.hear},
        )
        try:
            records = self._requested(lambda: first_records(consumer, ranges, int(where), _SECONDS))
        finally:
            consumer.close()
        return [records[place] for place in partitions]

    def _requested(self, ask: Callable[[], Any], *, missing: bool = False) -> Any:
        """Return the answer; raise a ConnectionError if there is none for now.

        Args:
            ask: returns it.
            missing: whether it may be that a topic does not exist. Else its leader perhaps does not know it yet.
        """
        from confluent_kafka import KafkaException

        began = time.time()
        try:
            answer = ask()
        except KafkaException as e:
            error = e.args[0]
            name = error.name()
            if error.retriable() or error.code() < 0 or name in _MOMENTARY or (name == _MISSING and not missing):
                self._trouble.listen(self._admin.poll)
                self._trouble.failed("the search for topics and offsets", error, began)
                self._admin = administrator(self._account, self._trouble)
                raise self._trouble.error(error) from None
            raise
        self._trouble.succeeded()
        return answer

    @override
    def close(self) -> None:
        pass


@contextlib.contextmanager
def _without(code: int) -> Any:
    """Ignore an error of librdkafka."""
    from confluent_kafka import KafkaException

    try:
        yield
    except KafkaException as e:
        if e.args[0].code() != code:
            raise
