"""Clients of a cluster in memory, for tests of what reading makes of their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.pvalue import TaggedOutput
from apache_beam.runners.sdf_utils import RestrictionTrackerView, ThreadsafeRestrictionTracker

from arcbeam.io.kafka.discovery import Discover
from arcbeam.io.kafka.fetching.protocols import Fetched, PartitionEnd
from arcbeam.io.kafka.partitions import Known, Offsets, Partition, Search
from arcbeam.io.kafka.reading import Read
from arcbeam.io.kafka.trouble import AddressError, ClientTrouble


@dataclass(frozen=True)
class Message:
    """A record as librdkafka gives it."""

    at: int
    milliseconds: int = 0
    kind: int = 1
    data: bytes = b"v"

    def offset(self) -> int:
        return self.at

    def timestamp(self) -> tuple[int, int]:
        return self.kind, self.milliseconds

    def key(self) -> bytes:
        return b"k"

    def value(self) -> bytes:
        return self.data

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return 0

    def headers(self) -> None:
        return None


@dataclass
class Log:
    """A partition. It is also its own client.

    Attributes:
        messages: the readable records.
        last: the offset after the last record, readable or not; None: no broker answers.
        reaches: how far fetches advance without readable records; None: to `last`.
        committed: the offset of the group.
        waits: for how long each fetch may have waited.
        resting: whether it is not fetched.
    """

    messages: list[Message] = field(default_factory=list)
    last: int | None = 0
    reaches: int | None = None
    group: str = "g"
    commits: bool = True
    committed: int | None = None
    returned: list[Fetched] = field(default_factory=list)
    closed: bool = False
    unanswered: str = "its end is unknown: down"
    has_answered: bool = False
    waits: list[float] = field(default_factory=list)
    resting: bool = False

    def readers(self) -> Log:
        return self

    def begin(self) -> None:
        pass

    def reader(self, partition: Partition) -> Log:
        return self

    def fetch(self, position: int, most: int, seconds: float = 0.0) -> Fetched:
        self.waits.append(seconds)
        some = [message for message in self.messages if message.offset() >= position][:most]
        if some:
            return Fetched(some, some[-1].offset() + 1)
        reaches = self.last if self.reaches is None else self.reaches
        return Fetched([], max(position, reaches or 0))

    def is_quiet(self, position: int) -> bool:
        return position >= (self.last or 0)

    def rest(self) -> None:
        self.resting = True

    def end(self, now: float, oldest: float) -> PartitionEnd | None:
        return None if self.last is None else PartitionEnd(self.last, now)

    def give_back(self, fetched: Fetched) -> None:
        self.returned.append(fetched)

    def commit(self, position: int) -> None:
        self.committed = position

    def close(self) -> None:
        self.closed = True


@dataclass
class Topics:
    """A cluster's topics. It is also its own client.

    Attributes:
        described: id and number of partitions of each topic.
        begins: the earliest offset of each partition.
        ends: what any other question for offsets is answered.
        group: the offset of the group in each partition; None: as the others.
        down: whether no broker answers.
        wrong: whether none can: the names of the brokers are unknown.
    """

    described: dict[str, tuple[str, int]]
    begins: int = 0
    ends: int = 100
    group: int | None = None
    down: bool = False
    wrong: bool = False

    def cluster(self) -> Topics:
        return self

    def trouble(self) -> ClientTrouble:
        return ClientTrouble("kafka:9092")

    def topics(self, names: Sequence[str] | None) -> Mapping[str, tuple[str, int]]:
        if self.down:
            raise (AddressError if self.wrong else ConnectionError)("down")
        return {name: of for name, of in self.described.items() if names is None or name in names}

    def offsets(self, partitions: Sequence[tuple[str, int]], where: Any, *, committed: bool) -> list[int]:
        found = {"earliest": self.begins, "group": self.ends if self.group is None else self.group}
        return [found.get(where, self.ends)] * len(partitions)

    def close(self) -> None:
        pass


class Finalizer:
    """Collects callbacks."""

    def __init__(self) -> None:
        self.callbacks: list[Any] = []

    def register(self, callback: Any) -> None:
        self.callbacks.append(callback)

    def finalize(self) -> None:
        for callback in self.callbacks:
            callback()


@dataclass
class Processed:
    """What a call of `process` gave.

    Attributes:
        outputs: `TimestampedValue`s.
        errors: the same, of the output for errors.
        rest: the restriction that remains.
        delay: seconds until it is processed; None if it was not deferred.
        watermark: in seconds.
    """

    outputs: list[Any]
    errors: list[Any]
    rest: Any
    delay: float | None
    watermark: float | None


def _processed(process: Any, element: Any, tracker: Any, estimator: Any, stop_after: int | None, *more: Any) -> Any:
    safe = ThreadsafeRestrictionTracker(tracker)
    outputs, errors, rest = [], [], None
    for output in process(element, *more, RestrictionTrackerView(safe), estimator):
        if isinstance(output, TaggedOutput):
            errors.append(output.value)
        else:
            outputs.append(output)
        if len(outputs) == stop_after:
            _, rest = tracker.try_split(0)
    deferred = safe.deferred_status()
    delay = None
    if deferred is not None:
        rest, at = deferred
        delay = at.micros / 1e6
    else:
        safe.check_done()
    watermark = estimator.current_watermark()
    return Processed(outputs, errors, rest, delay, None if watermark is None else watermark.micros / 1e6)


def read(
    fn: Read, partition: Partition, restriction: Any = None, *, estimator: Any = None, stop_after: int | None = None
) -> tuple[Processed, Finalizer]:
    """Process a partition; the runner stops it after a number of outputs."""
    offsets, finalizer = Offsets(), Finalizer()
    fn.start_bundle()
    tracker = offsets.create_tracker(restriction or offsets.initial_restriction(partition))
    estimator = estimator or ManualWatermarkEstimator(None)
    return _processed(fn.process, partition, tracker, estimator, stop_after, finalizer), finalizer


def discover(fn: Discover, known: Any = Known(), estimator: Any = None) -> Processed:
    """Search once."""
    found: Processed = _processed(
        fn.process, None, Search().create_tracker(known), estimator or ManualWatermarkEstimator(None), None
    )
    return found
