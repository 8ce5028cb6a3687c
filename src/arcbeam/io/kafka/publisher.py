"""Publishes staged records exactly once: a transaction for each part of a shard, with a register of what is published.

The register of a shard is the offset of a consumer group of its own: the sequence number of the newest published part,
with the part's token as metadata. It is set in the transaction that produces the part, so both happen or neither. A job
that goes back to a savepoint gives the same numbers to other parts; their tokens differ. A shard's group is also its
`transactional.id`: a new producer ends what an older one has open, and fences it. So of two processes that publish the
same part, one succeeds, and the other finds it done.

Owns that protocol, and what a register must say. Must not know how records were staged.
"""

from __future__ import annotations

import hashlib
import logging
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, Final, Protocol

from typing_extensions import override

from arcbeam import documents
from arcbeam.errors import PublishRefusedError
from arcbeam.io.kafka.connection import ClientConnection
from arcbeam.io.kafka.outgoing import Plain, decoded, unframed
from arcbeam.io.kafka.producing import InDoubtError, LibrdkafkaShard, ProducerFencedError, Register, check_reachable
from arcbeam.io.publishing import Publisher
from arcbeam.sizes import threshold

_LOG = logging.getLogger("arcbeam.kafka")

VERSION: Final = 1
"""Of the form of a part in a committable."""
_TRIES: Final = 3
"""Of a part, if another process publishes it at the same time, or connections fail."""
_AT_ONCE: Final = 8
"""Shards that are published concurrently."""
_RECORDS_MIN: Final = threshold(5_000, 20)
_SMALL: Final = threshold(1 << 20, 2_000)
"""Records and bytes that a driver produces within milliseconds."""


class RegisterError(PublishRefusedError):
    """The register of a shard contradicts the job: what was published is unknown."""


@dataclass(frozen=True, slots=True)
class TransactionPart:
    """Records of a shard, staged, and published in one transaction.

    Attributes:
        name: of the shard: its group and `transactional.id`.
        sequence: its number among the parts of the shard, from 1.
        staged: where its records are.
        records: their number.
        bytes: their size.
        register: the topic at whose partition 0 the group has its offset.
        token: its identity: no other part of the shard has it.
        after: the token of the part before it; "" if there is none, or if it is unknown.
        begins: whether the job has staged no part of this shard before. If it is a copy, the part's number is not 1.
    """

    name: str
    sequence: int
    staged: str
    records: int
    bytes: int
    register: str
    token: str = ""
    after: str = ""
    begins: bool = False

    def plain(self) -> dict[str, Any]:
        """Return the form in a committable."""
        return {"version": VERSION, **asdict(self)}

    @staticmethod
    def of(plain: Mapping[str, Any]) -> TransactionPart:
        """Read a committable."""
        return TransactionPart(**documents.checked(plain, VERSION, "a part of a Kafka sink"))


def _is_small(parts: Sequence[TransactionPart]) -> bool:
    return sum(part.records for part in parts) <= _RECORDS_MIN and sum(part.bytes for part in parts) <= _SMALL


def name_of(job: str, sink: str, shard: int) -> str:
    """Return the name of a shard."""
    return f"arcbeam.{job}.{sink}.{shard}"


def job_of(name: str) -> str:
    """Return the job in the name of a shard."""
    return name.split(".")[1]


def sink_of(label: str) -> str:
    """Return the name of a sink from the full label of its transform."""
    return hashlib.sha256(label.encode()).hexdigest()[:12]


class ShardProducer(Protocol):
    """A transactional producer of a shard, and its register."""

    def begin(self) -> Register | None:
        """Fence other producers, end what they have open, and return the register; None if there is none.

        Raises:
            InDoubtError: the broker does not answer in time.
        """

    def publish(self, records: Iterable[Plain], register: Register) -> None:
        """Produce records and set the register, in one transaction.

        Raises:
            ProducerFencedError: another producer has begun since. Nothing is published.
            InDoubtError: a connection has failed. The records may be published.
        """

    def sound(self) -> bool:
        """Return whether no connection has failed since the last success."""

    def close(self) -> None:
        """Release the connection."""


def still_to_publish(
    parts: Sequence[TransactionPart],
    register: Register | None,
    *,
    trusts: bool,
    warn: Callable[[str], None] = warnings.warn,
) -> list[TransactionPart]:
    """Return which parts are not published.

    Args:
        parts: consecutive parts of a shard.
        register: the newest published one; None: the register does not exist.
        trusts: whether a missing register means that none of them is published.
        warn: called with warnings.

    Raises:
        RegisterError: the register contradicts the parts.
    """
    first, last = parts[0], parts[-1]
    if register is None and (first.begins or first.sequence == 1 or trusts):
        return list(parts)
    if register is None or register.sequence < first.sequence - 1:
        raise _lost(first, last, register)
    if register.sequence > last.sequence:
        raise _passed(last, register)
    found = next((part for part in parts if part.sequence == register.sequence), None)
    if register.token and register.token != (first.after if found is None else found.token):
        raise _other(found or first, register, f"is at another part {register.sequence}")
    if found is not None and not register.token:
        # Only a user sets a register without a token.
        warn(
            f"WriteToKafka does not publish part {found.sequence} of shard {found.name}: the offset of the consumer "
            "group was set to it by hand"
        )
    return [part for part in parts if part.sequence > register.sequence]


def _lost(first: TransactionPart, last: TransactionPart, register: Register | None) -> RegisterError:
    """Return the error for a register that does not exist, or is at an earlier part than the job."""
    name = first.name
    found = "does not exist" if register is None else f"is at part {register.sequence}"
    return RegisterError(
        f"WriteToKafka cannot know whether part {first.sequence} of shard {name} is published: this job has published "
        f"the parts before it, but its register (the offset of the consumer group {name} at {first.register}[0]) "
        f"{found}. It was deleted, or has expired (the broker's offsets.retention.minutes), or the topic was "
        "created again. Look whether the last records are in the topic. Then resume the job with "
        "WriteToKafka(on_lost_register='publish'), which publishes this part, perhaps a second time; or set the "
        f"offset of the group to {last.sequence}, so that it is not published"
    )


def _passed(part: TransactionPart, register: Register) -> RegisterError:
    """Return the error for a register at a part that the job does not know."""
    error = _other(part, register, f"is at part {register.sequence}")
    return RegisterError(
        f"{error}. If instead this job is a copy of a savepoint, and its original continued, then the original has "
        "published this part, and needs the group: do not delete it. Copy the savepoint again"
    )


def _other(part: TransactionPart, register: Register, found: str) -> RegisterError:
    """Return the error for a register of parts that the job does not know."""
    return RegisterError(
        f"WriteToKafka must not publish part {part.sequence} of shard {part.name}: its register (the offset of the "
        f"consumer group {part.name} at {part.register}[0]) {found}. Either this job was restored from a savepoint, "
        "and records that it published after that are still in the topic; or two jobs were restored from it. No other "
        "job may publish to this shard. Remove those records, or accept that some are written again. Then delete the "
        "consumer group, and resume the job with WriteToKafka(on_lost_register='publish')"
    )


class PublishRecords(Publisher):
    """Publishes parts.

    Args:
        connection: how producers connect.
        storage: opens the storage of staged records.
        trusts: see `still_to_publish`.
    """

    def __init__(self, connection: ClientConnection, storage: Callable[[], Any], *, trusts: bool) -> None:
        self._connection, self._storage, self._trusts = connection, storage, trusts

    @override
    def setup(self) -> None:
        self._staging = self._storage()
        # A shard's open producer, and what it has published last.
        self._open: dict[str, tuple[ShardProducer, Register]] = {}
        self._tries = _TRIES

    @override
    def prepare_in_driver(self) -> None:
        check_reachable(self._connection)
        # Workers try again, and report errors.
        self._tries = 1

    @override
    def is_quick(self, committables: Sequence[Mapping[str, Any]]) -> bool:
        parts = [part for committable in committables for part in committable["parts"]]
        return _is_small([TransactionPart.of(part) for part in parts])

    @override
    def teardown(self) -> None:
        while self._open:
            self._open.popitem()[1][0].close()

    @override
    def publish(self, committables: Sequence[Mapping[str, Any]]) -> None:
        by_shard: dict[str, list[TransactionPart]] = defaultdict(list)
        for committable in committables:
            for plain in committable["parts"]:
                by_shard[plain["name"]].append(TransactionPart.of(plain))
        shards = [sorted(parts, key=lambda part: part.sequence) for parts in by_shard.values()]
        with ThreadPoolExecutor(min(_AT_ONCE, max(1, len(shards)))) as pool:
            for _ in pool.map(self._publish, shards):
                pass

    def _publish(self, parts: list[TransactionPart]) -> None:
        for left in reversed(range(self._tries)):
            try:
                self._try(parts)
                return
            except (ProducerFencedError, InDoubtError) as e:
                if not left:
                    raise
                _LOG.info("Kafka, shard %s: %s", parts[0].name, e)

    def _try(self, parts: list[TransactionPart]) -> None:
        name = parts[0].name
        shard, register = self._open.pop(name, (None, None))
        try:
            if shard is None or register != Register(parts[0].sequence - 1, parts[0].after) or not shard.sound():
                if shard is not None:
                    shard.close()
                shard = self.shard(parts[0])
                register = shard.begin()
            for part in still_to_publish(parts, register, trusts=self._trusts, warn=self.warn):
                shard.publish(self._records(part), Register(part.sequence, part.token))
        except BaseException:
            # Whether a transaction has ended may be unknown. The next producer finds out.
            if shard is not None:
                shard.close()
            raise
        self._open[name] = shard, Register(parts[-1].sequence, parts[-1].token)

    def shard(self, part: TransactionPart) -> ShardProducer:
        """Return a new producer for a part's shard."""
        return LibrdkafkaShard(self._connection, part.name, part.register, job_of(part.name))

    def _records(self, part: TransactionPart) -> Iterable[Plain]:
        data = self._staging.get(part.staged)
        if data is None:
            raise FileNotFoundError(
                f"WriteToKafka: the staged records {self._staging.full(part.staged)} do not exist: they were staged "
                "where this process does not see them, or were removed. On a cluster, use a staging path that all "
                "hosts share"
            )
        return (record for chunk in unframed(data) for record in decoded(chunk))

    @override
    def sweep(self, job: str, micro_batch: int) -> None:
        self._staging.sweep(job, micro_batch)
