"""Records with their metadata, as the client of the cluster gives them."""

from __future__ import annotations

import pytest
from apache_beam.utils.timestamp import Timestamp

from arcbeam.io.kafka.records import Decoder, KafkaRecord, whole
from tests.io.kafka.fakes import Message

pytestmark = pytest.mark.contract("KAFKA-01")


class Headed(Message):
    """A record with two headers of one name."""

    def headers(self) -> list[tuple[str, bytes | None]]:  # type: ignore[override]
        return [("h", b"1"), ("h", None)]


@pytest.mark.parametrize(
    ("kind", "milliseconds", "time"),
    [
        # A record without a type of time has no time, whatever the number.
        (0, -1, None),
        (0, 0, None),
        (0, 5, None),
        (1, 0, Timestamp(0)),
        (1, -1, Timestamp(micros=-1_000)),
        (1, 1_500, Timestamp(micros=1_500_000)),
        (2, 1_501, Timestamp(micros=1_501_000)),
    ],
)
def test_record_has_its_time_if_it_has_a_type(kind: int, milliseconds: int, time: Timestamp | None) -> None:
    assert whole(Message(7, milliseconds, kind), b"k", b"v") == KafkaRecord("t", 0, 7, time, b"k", b"v", ())


def test_metadata_is_that_of_each_record() -> None:
    messages = [Message(7, 1, 1, b"a"), Headed(8, -1, 0, b"b")]
    decoder = Decoder(None, None, metadata=True, errors=False)
    decoder.set_up()
    good, outputs, bad = decoder.decoded(messages)
    assert (good, bad) == (messages, [])
    assert outputs == [
        KafkaRecord("t", 0, 7, Timestamp(micros=1_000), b"k", b"a", ()),
        KafkaRecord("t", 0, 8, None, b"k", b"b", (("h", b"1"), ("h", None))),
    ]
