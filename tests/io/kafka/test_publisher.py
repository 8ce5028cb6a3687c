"""What is published, whatever happens to producers: shards in memory, which fence each other as brokers do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from arcbeam.io.kafka.connection import ClientConnection
from arcbeam.io.kafka.outgoing import Plain, encoded, framed
from arcbeam.io.kafka.producing import InDoubtError, ProducerFencedError, Register
from arcbeam.io.kafka.publisher import PublishRecords, RegisterError, TransactionPart, still_to_publish

pytestmark = pytest.mark.contract("KAFKA-06")


class Broker:
    """What a broker keeps of a shard."""

    def __init__(self) -> None:
        self.published: list[bytes] = []
        self.register: Register | None = None
        self.epoch = 0
        self.begun = 0
        self.is_sound = True
        self.dies: list[str] = []


class Shard:
    def __init__(self, broker: Broker) -> None:
        self._broker, self._epoch = broker, 0

    def begin(self) -> Register | None:
        self._broker.epoch += 1
        self._broker.begun += 1
        self._epoch = self._broker.epoch
        return self._broker.register

    def publish(self, records: Iterable[Plain], register: Register) -> None:
        broker = self._broker
        values = [record[4] or b"" for record in records]
        if self._epoch != broker.epoch:
            raise ProducerFencedError("fenced")
        fate, _, doubt = (broker.dies.pop(0) if broker.dies else "").partition(", in ")
        kind = InDoubtError if doubt else OSError
        if fate == "before":
            raise kind("before the commit")
        broker.published += values
        broker.register = register
        if fate == "after":
            raise kind("after the commit")

    def sound(self) -> bool:
        return self._broker.is_sound

    def close(self) -> None:
        pass


class Publisher(PublishRecords):
    def __init__(self, broker: Broker, *, trusts: bool = False) -> None:
        super().__init__(ClientConnection({}), lambda: Files(), trusts=trusts)
        self._broker = broker
        self.setup()

    def shard(self, part: TransactionPart) -> Any:
        return Shard(self._broker)


class Files:
    path = "staged"

    def get(self, name: str) -> bytes | None:
        return framed([encoded([("t", -1, 0, None, name.encode(), ())])]) if name != "lost" else None

    def full(self, name: str) -> str:
        return f"staged/{name}"


def part(sequence: int, staged: str = "", token: str = "", after: str = "", *, begins: bool = False) -> TransactionPart:
    return TransactionPart("arcbeam.job.sink.0", sequence, staged or str(sequence), 1, 1, "t", token, after, begins)


def chain(*tokens: str) -> list[TransactionPart]:
    """Return consecutive parts from number 2, each with its token; the first names that of the part before."""
    return [part(n, "", token, tokens[n - 2]) for n, token in enumerate(tokens[1:], 2)]


def committable(*sequences: int) -> dict[str, Any]:
    parts = (part(n, token=f"t{n}", after=f"t{n - 1}" if n > 1 else "") for n in sequences)
    return {"parts": [each.plain() for each in parts]}


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
    assert (broker.published, broker.register) == ([b"1", b"2"], Register(2, "t2"))


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
    assert (broker.published, broker.register) == ([b"1", b"2"], Register(2, "t2"))


def test_register_that_went_back_is_refused() -> None:
    with pytest.raises(RegisterError, match="is at part 1"):
        still_to_publish([part(3)], Register(1), trusts=True)


def test_register_ahead_of_the_job_is_refused() -> None:
    with pytest.raises(RegisterError, match="restored from a savepoint"):
        still_to_publish([part(3)], Register(4), trusts=False)


def test_parts_follow_the_token_of_the_register() -> None:
    parts = chain("a", "b", "c")
    for published, register in enumerate((Register(1, "a"), Register(2, "b"), Register(3, "c"))):
        assert still_to_publish(parts, register, trusts=False) == parts[published:]


@pytest.mark.parametrize("trusts", [False, True])
@pytest.mark.parametrize("register", [Register(1, "x"), Register(2, "x"), Register(3, "x"), Register(4, "x")])
def test_register_at_other_parts_is_refused(register: Register, trusts: bool) -> None:
    with pytest.raises(RegisterError, match=r"delete the consumer group, and resume .*on_lost_register='publish'"):
        still_to_publish(chain("a", "b", "c"), register, trusts=trusts)


def test_offset_set_by_hand_is_reported() -> None:
    with pytest.warns(UserWarning, match=r"part 2 .*by hand"):
        assert still_to_publish(chain("a", "b"), Register(2), trusts=False) == []


def test_first_part_of_a_copy_needs_no_register() -> None:
    of = part(7, "", "b", begins=True)
    assert still_to_publish([of], None, trusts=False) == [of]
    assert still_to_publish([of], Register(7, "b"), trusts=False) == []


def test_missing_file_is_named() -> None:
    with pytest.raises(FileNotFoundError, match="staged/lost"):
        Publisher(Broker()).publish([{"parts": [part(1, "lost").plain()]}])
