"""Finds the partitions to read: those that exist, and each one that is added while the job runs.

Owns which offsets a partition begins and ends with, and what must not happen to a topic. The partitions that were found
are the restriction, so each commit and savepoint has them, and each is read once. Must not know records.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import apache_beam as beam
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Duration, Timestamp
from typing_extensions import override

from arcbeam.errors import SetupError
from arcbeam.io.kafka.clients import Clients
from arcbeam.io.kafka.fetching.protocols import TopicCluster, deleted, recreated
from arcbeam.io.kafka.partitions import ENDLESS, Known, Partition, Place, Search
from arcbeam.io.kafka.times import EventTimes
from arcbeam.io.kafka.trouble import AddressError, unreachable
from arcbeam.model.attempts import wait_reason
from arcbeam.model.timestamps import MIN_TIMESTAMP, NOT_BEGUN

_LOG = logging.getLogger("arcbeam.kafka")

_RETRY_SECONDS: Final = 1.0
"""Until the next try, while no broker answers."""

_BOUNDED_SECONDS: Final = 60.0
"""After which a bounded read fails if no broker answers; a stream waits."""

_WRONG_SECONDS: Final = 10.0
"""The same, if no broker can be found, or none takes the credentials."""

Where = str | int | Mapping[tuple[str, int], int]
"""Where to begin or end: "earliest", "latest", "group", milliseconds since 1970, or offsets by topic and partition."""


class MissingError(SetupError, LookupError):
    """What is to be read does not exist, or is not where the arguments say."""


@dataclass(frozen=True)
class Wanted:
    """What is read.

    Attributes:
        topics: names of topics; () if `pattern` or `partitions` say which.
        pattern: a regular expression for whole names; "" if there is none.
        partitions: topics and numbers of partitions; () for all.
        start: where to begin in the partitions that exist at first.
        stop: where to end; None: never.
        committed: whether only committed transactions are read.
    """

    topics: tuple[str, ...]
    pattern: str
    partitions: tuple[tuple[str, int], ...]
    start: Where
    stop: Where | None
    committed: bool

    def found(self, cluster: TopicCluster, known: Known) -> list[Place]:
        """Return the partitions that exist and are wanted.

        Args:
            cluster: knows the topics.
            known: partitions that were found earlier.

        Raises:
            ConnectionError: no broker answers.
            MissingError: a topic or partition does not exist.
            TopicGoneError: a topic was deleted, or created again.
        """
        names = self.topics or tuple(dict.fromkeys(topic for topic, _ in self.partitions)) or None
        described = cluster.topics(names)
        for topic, id, _ in known.places:
            if topic not in described:
                raise deleted(topic)
            if described[topic][0] != id:
                raise recreated(topic, id, described[topic][0])
        if missing := [name for name in names or () if name not in described]:
            raise MissingError(
                f"Kafka: the topic {missing[0]} does not exist, or this user is not allowed to describe it"
            )
        if self.pattern:
            described = {name: of for name, of in described.items() if re.fullmatch(self.pattern, name)}
        if not self.partitions:
            return [(topic, id, n) for topic, (id, count) in sorted(described.items()) for n in range(count)]
        for topic, number in self.partitions:
            if number >= described[topic][1]:
                raise MissingError(f"Kafka: the topic {topic} has no partition {number}: it has {described[topic][1]}")
        return [(topic, described[topic][0], number) for topic, number in sorted(self.partitions)]

    def placed(self, cluster: TopicCluster, places: Sequence[Place], *, at_first: bool) -> list[Partition]:
        """Return partitions with their first and last offsets.

        Args:
            cluster: knows the offsets.
            places: the partitions.
            at_first: whether they existed when the job began. Others are read from their beginning.

        Raises:
            ConnectionError: no broker answers.
            MissingError: `start` or `stop` lacks a partition, or has another one; or `start` is not in its log.
        """
        if at_first:
            self._check_names(places)
        starts = self._offsets(cluster, places, self.start if at_first else "earliest", "start")
        if at_first and (isinstance(self.start, Mapping) or self.start == "group"):
            self._check_starts(cluster, places, starts)
        stops = [ENDLESS] * len(places)
        if self.stop is not None:
            stops = self._offsets(cluster, places, self.stop, "stop")
        return [
            Partition(*place, start, max(start, stop)) for place, start, stop in zip(places, starts, stops, strict=True)
        ]

    def _check_names(self, places: Sequence[Place]) -> None:
        """Refuse offsets of partitions that are not read.

        Raises:
            MissingError: likewise.
        """
        there = {(topic, number) for topic, _, number in places}
        for argument, where in (("start", self.start), ("stop", self.stop)):
            if isinstance(where, Mapping) and (without := [place for place in where if tuple(place) not in there]):
                topic, number = without[0]
                raise MissingError(
                    f"ReadFromKafka({argument}=…) has an offset for {topic}[{number}], which is not read"
                )

    def _check_starts(self, cluster: TopicCluster, places: Sequence[Place], starts: Sequence[int]) -> None:
        """Refuse offsets that brokers would refuse: before the first record that exists, or after the end.

        Raises:
            MissingError: likewise.
        """
        partitions = [(topic, number) for topic, _, number in places]
        if not partitions:
            return
        firsts = cluster.offsets(partitions, "earliest", committed=False)
        ends = cluster.offsets(partitions, "latest", committed=False)
        for (topic, number), start, first, end in zip(partitions, starts, firsts, ends, strict=True):
            if not first <= start <= end:
                what = f"the offset {start} is {'before the first' if start < first else 'after the last'} record"
                argument, another = ("…", "Give one of these") if self.start != "group" else ("'group'", "Reset it")
                raise MissingError(
                    f"ReadFromKafka(start={argument}), {topic}[{number}]: {what} that exists: its offsets are {first} "
                    f"to {end}. {another}, or use start='earliest' for all that exist"
                )

    def _offsets(self, cluster: TopicCluster, places: Sequence[Place], where: Where, argument: str) -> list[int]:
        partitions = [(topic, number) for topic, _, number in places]
        if not partitions:
            return []
        if isinstance(where, Mapping):
            for topic, number in partitions:
                if (topic, number) not in where:
                    raise MissingError(
                        f"ReadFromKafka({argument}=…) has no offset for partition {number} of the topic {topic}"
                    )
            return [where[partition] for partition in partitions]
        return cluster.offsets(partitions, where, committed=self.committed)


class BrokersAwayError(SetupError, RuntimeError):
    """A bounded read has found no broker, or a new stream can find none."""


class Discover(beam.DoFn):  # type: ignore[misc]  # Beam is untyped
    """Emits each wanted partition once.

    Args:
        clients: how to connect.
        wanted: what is read.
        seconds: between two searches; None: there is only one.
        times: what a later partition promises of its records.
        clock: returns seconds since 1970.
    """

    def __init__(
        self,
        clients: Clients,
        wanted: Wanted,
        seconds: float | None,
        times: EventTimes,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._clients, self._wanted, self._seconds, self._times = clients, wanted, seconds, times
        self._clock = clock
        self._cluster: TopicCluster | None = None
        self._failing_since: float | None = None
        self._away_since: float | None = None

    @beam.DoFn.unbounded_per_element()  # type: ignore[untyped-decorator]
    def process(
        self,
        element: Any,
        tracker: Any = beam.DoFn.RestrictionParam(Search()),
        estimator: Any = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider()),
    ) -> Iterator[Any]:
        """Search, emit what is new, and defer the next search."""
        known: Known = tracker.current_restriction()
        since = estimator.current_watermark()
        began = self._clock()
        now = int(began * 1_000_000)
        try:
            partitions = self._search(known)
        except ConnectionError as e:
            self._check_hope(e, known)
            self._failing_since = began if self._failing_since is None else self._failing_since
            wait_reason.reason = self._unreachable(e, self._clock() - self._failing_since)
            if since is None:
                # As before its beginning. Without this, the status would say that this DoFn never reports a watermark.
                estimator.set_watermark(Timestamp(micros=NOT_BEGUN))
            tracker.defer_remainder(Duration(_RETRY_SECONDS))
            return
        self._failing_since = self._away_since = None
        if self._wanted.pattern and not partitions and not known.places:
            self._without_topics()
        if not tracker.try_claim((of.topic, of.topic_id, of.number) for of in partitions):
            return
        if known.searched and partitions:
            _LOG.warning("Kafka: new partitions are read: %s", ", ".join(map(repr, partitions)))
        # A partition that was not there at the last search has only records that are later than that.
        is_later = since is not None and since.micros > NOT_BEGUN
        at = since if is_later and self._times.idle else Timestamp(micros=MIN_TIMESTAMP)
        for partition in partitions:
            yield TimestampedValue(partition, at)
        if self._seconds is None:
            tracker.try_claim(None)
            return
        promised = Timestamp(micros=max(MIN_TIMESTAMP, now - self._times.delay))
        if since is None or promised > since:
            estimator.set_watermark(promised)
        tracker.defer_remainder(Duration(self._seconds))

    def _check_hope(self, error: ConnectionError, known: Known) -> None:
        """Fail if a broker cannot answer later, and none ever has: the user has mistyped a host or a password.

        A job that has read waits: names and passwords of brokers may be unknown for a while.

        Raises:
            BrokersAwayError: likewise.
        """
        if known.searched or not isinstance(error, AddressError):
            self._away_since = None
            return
        now = self._clock()
        self._away_since = now if self._away_since is None else self._away_since
        if (took := now - self._away_since) > _WRONG_SECONDS:
            self._away_since = None
            raise self._away(error, took) from None

    def _away(self, error: ConnectionError, seconds: float) -> BrokersAwayError:
        return BrokersAwayError(f"Kafka: {self._unreachable(error, seconds)}")

    def _unreachable(self, error: ConnectionError, seconds: float) -> str:
        return unreachable(self._clients.trouble().servers, error, seconds)

    def _without_topics(self) -> None:
        """Say in the status that no topic matches; fail if no search will find one.

        Raises:
            MissingError: likewise.
        """
        text = f"no topic that this user may describe has a name that is all of {self._wanted.pattern!r}"
        if self._seconds is None:
            raise MissingError(f"Kafka: {text}")
        wait_reason.reason = text

    def _search(self, known: Known) -> list[Partition]:
        """Return the partitions that are not known; raise a ConnectionError if no broker answers."""
        cluster = self._connected()
        old = set(known.places)
        new = [place for place in self._wanted.found(cluster, known) if place not in old]
        return self._wanted.placed(cluster, new, at_first=not known.searched)

    def _connected(self) -> TopicCluster:
        if self._cluster is None:
            self._cluster = self._clients.cluster()
        return self._cluster

    @override
    def teardown(self) -> None:
        if self._cluster is not None:
            self._cluster.close()


class DiscoverOnce(Discover):
    """The same for a bounded read, with one search. It fails if no broker answers for a minute."""

    @override
    def process(
        self,
        element: Any,
        tracker: Any = beam.DoFn.RestrictionParam(Search()),
        estimator: Any = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider()),
    ) -> Iterator[Any]:
        """Search, and emit what is found."""
        yield from super().process(element, tracker, estimator)

    @override
    def _search(self, known: Known) -> list[Partition]:
        began = self._clock()
        while True:
            try:
                return super()._search(known)
            except ConnectionError as e:
                took = self._clock() - began
                if took > (_WRONG_SECONDS if isinstance(e, AddressError) else _BOUNDED_SECONDS):
                    raise self._away(e, took) from None
                time.sleep(_RETRY_SECONDS)
