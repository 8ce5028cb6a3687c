"""What is published, whatever happens to producers: shards in memory, which fence each other as brokers do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from arcbeam.io.kafka.connection import Connection
from arcbeam.io.kafka.outgoing import Plain, encoded, framed
from arcbeam.io.kafka.producing import FencedError, InDoubtError
from arcbeam.io.kafka.publisher import Part, PublishRecords, RegisterError, still_to_publish

pytestmark = pytest.mark.contract("KAFKA-06")


class Broker:
    """What a broker keeps of a shard."""

    def __init__(self) -> None:
        self.published: list[bytes] = []
        self.register: int | None = None
        self.epoch = 0
        self.begun = 0
        self.is_sound = True
        self.dies: list[str] = []


class Shard:
    def __init__(self, broker: Broker) -> None:
        self._broker, self._epoch = broker, 0

    def begin(self) -> int | None:
        self._broker.epoch += 1
        self._broker.begun += 1
        self._epoch = self._broker.epoch
        return self._broker.register

    def publish(self, records: Iterable[Plain], sequence: int) -> None:
        broker = self._broker
        values = [record[4] or b"" for record in records]
        if self._epoch != broker.epoch:
            raise FencedError("fenced")
        fate, _, doubt = (broker.dies.pop(0) if broker.dies else "").partition(", in ")
        kind = InDoubtError if doubt else OSError
        if fate == "before":
            raise kind("before the commit")
        broker.published += values
        broker.register = sequence
        if fate == "after":
            raise kind("after the commit")

    def sound(self) -> bool:
        return self._broker.is_sound

    def close(self) -> None:
        pass


class Publisher(PublishRecords):
    def __init__(self, broker: Broker, *, trusts: bool = False) -> None:
        super().__init__(Connection({}), lambda: Files(), trusts=trusts)
        self._broker = broker
        self.setup()

    def shard(self, part: Part) -> Any:
        return Shard(self._broker)


class Files:
    path = "staged"

    def get(self, name: str) -> bytes | None:
        return framed([encoded([("t", -1, 0, None, name.encode(), ())])]) if name != "lost" else None

    def full(self, name: str) -> str:
        return f"staged/{name}"


def part(sequence: int, staged: str = "") -> Part:
    return Part("arcbeam.job.sink.0", sequence, staged or str(sequence), 1, "t")


def committable(*sequences: int) -> dict[str, Any]:
    return {"parts": [part(sequence).plain() for sequence in sequences]}


def test_parts_are_published_once_in_order() -> None:
    broker = Broker()
    publisher = Publisher(broker)
    publisher.publish([committable(2), committable(1)])
    publisher.publish([committable(3)])
    assert (broker.published, broker.begun) == ([b"1", b"2", b"3"], 1)


@pytest.mark.parametrize("fate", ["before", "after"])
def test_repeated_call_finds_what_is_published(fate: str) -> None:
    broker = Broker()
    publisher = Publisher(broker)
    broker.dies = ["", fate]
    with pytest.raises(OSError, match=fate):
        publisher.publish([committable(1, 2)])
    Publisher(broker).publish([committable(1, 2)])
    publisher.publish([committable(1, 2)])
    assert (broker.published, broker.register) == ([b"1", b"2"], 2)


@pytest.mark.parametrize("fate", ["before", "after"])
def test_part_in_doubt_is_published_once(fate: str) -> None:
    broker = Broker()
    publisher = Publisher(broker)
    broker.dies = ["", f"{fate}, in doubt", f"{fate}, in doubt"]
    publisher.publish([committable(1, 2, 3)])
    assert (broker.published, broker.begun) == ([b"1", b"2", b"3"], 3)
    broker.dies = ["before, in doubt"] * 3
    with pytest.raises(InDoubtError):
        publisher.publish([committable(4)])
    publisher.publish([committable(4)])
    assert broker.published == [b"1", b"2", b"3", b"4"]


def test_producer_whose_connections_failed_is_replaced() -> None:
    broker = Broker()
    publisher = Publisher(broker)
    publisher.publish([committable(1)])
    broker.is_sound = False
    publisher.publish([committable(2)])
    assert (broker.published, broker.begun) == ([b"1", b"2"], 2)


def test_fenced_publisher_repeats_nothing() -> None:
    broker = Broker()
    zombie = Publisher(broker)
    zombie.publish([committable(1)])
    Publisher(broker).publish([committable(2)])
    zombie.publish([committable(2)])
    assert broker.published == [b"1", b"2"]


def test_lost_register_is_refused() -> None:
    broker = Broker()
    Publisher(broker).publish([committable(1)])
    broker.register = None
    with pytest.raises(RegisterError, match=r"part 2 .*group arcbeam\.job\.sink\.0 at t\[0\]\) does not exist"):
        Publisher(broker).publish([committable(2)])
    Publisher(broker, trusts=True).publish([committable(2)])
    assert (broker.published, broker.register) == ([b"1", b"2"], 2)


def test_register_that_went_back_is_refused() -> None:
    with pytest.raises(RegisterError, match="is at part 1"):
        still_to_publish([part(3)], 1, trusts=True)


def test_register_ahead_of_the_job_is_refused() -> None:
    with pytest.raises(RegisterError, match="restored from a savepoint"):
        still_to_publish([part(3)], 4, trusts=False)


def test_missing_file_is_named() -> None:
    with pytest.raises(FileNotFoundError, match="staged/lost"):
        Publisher(Broker()).publish([{"parts": [part(1, "lost").plain()]}])
