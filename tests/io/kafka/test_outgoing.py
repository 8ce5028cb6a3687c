from __future__ import annotations

from typing import Any

import apache_beam as beam
import pytest
from apache_beam.utils.timestamp import Timestamp

from arcbeam.io.kafka import ProducerRecord, RecordRefusedError, WriteToKafka
from arcbeam.io.kafka.outgoing import Outgoing, RecordChunks, decoded, encoded, extents, framed, joined, unframed

SERVERS = {"bootstrap.servers": "localhost:9"}
OUTGOING = Outgoing("t", None, str.encode, 2_000)
pytestmark = pytest.mark.contract("KAFKA-07")


def test_pair_takes_the_topic_and_serializers() -> None:
    assert OUTGOING.plain((b"k", "v")) == ("t", -1, 0, b"k", b"v", ())


def test_record_decides_topic_partition_headers_and_time() -> None:
    record = ProducerRecord("v", b"k", "other", 3, [("h", b"1")], Timestamp(2))
    assert OUTGOING.plain(record) == ("other", 3, 2_000, b"k", b"v", (("h", b"1"),))


@pytest.mark.parametrize(
    ("element", "message"),
    [
        ("v", "got a str: expected a pair"),
        (("k", "v"), "key that is a str.*key_serializer"),
        (
            (b"k", "v" * 2_000),
            "message.max.bytes of producer_config is 2,000: raise it, and max.message.bytes of the topic",
        ),
        (ProducerRecord(b"v", partition=-1), "for the partition -1: expected a number from 0 on"),
        (ProducerRecord(b"v", partition=0.9), "for the partition 0.9"),  # type: ignore[arg-type]
        (ProducerRecord(b"v", partition=2**31), "for the partition 2147483648"),
        (ProducerRecord(b"v", headers={"a": b"1"}), "headers of type dict that are not pairs"),  # type: ignore[arg-type]
        (ProducerRecord(b"v", headers=[("a", "1")]), "headers of type list"),  # type: ignore[list-item]
    ],
)
def test_record_that_kafka_refuses_is_named(element: Any, message: str) -> None:
    with pytest.raises(RecordRefusedError, match=message):
        OUTGOING.plain(element)


def test_record_without_topic_is_named() -> None:
    with pytest.raises(RecordRefusedError, match="without a topic"):
        Outgoing("", None, None, 2_000).plain((b"k", b"v"))


def test_chunks_keep_the_order_of_keys() -> None:
    chunks = RecordChunks(Outgoing("t", None, None, 2_000), 4)
    chunks.start_bundle()
    pairs = [(str(n % 7).encode(), str(n).encode()) for n in range(500)]
    out = [*chunks.take(pairs, None), *chunks.finish_bundle()]
    assert len({chunk.value[0] for chunk in out}) > 1
    found: dict[bytes | None, list[int]] = {}
    for chunk in out:
        for record in decoded(chunk.value[1][0]):
            found.setdefault(record[3], []).append(int(record[4] or b""))
    assert found == {str(key).encode(): list(range(key, 500, 7)) for key in range(7)}


def test_extents_are_of_all_records_and_chunks() -> None:
    records = [("t", number, at, b"k", b"v", ()) for number, at in ((-1, 0), (3, 9), (0, 4), (1, 0), (-1, 7))]
    assert extents([*records, ("u", -1, 0, b"k", b"v", ())]) == {"t": (3, 4, 9), "u": (0, 0, 0)}
    assert joined((0, 0, 0), (2, 5, 6)) == joined((2, 5, 6), (1, 0, 0)) == (2, 5, 6)
    assert joined((0, 3, 4), (2, 5, 6)) == (2, 3, 6)


def test_chunks_survive_staging() -> None:
    chunks = [encoded([("t", -1, 0, None, None, (("h", None),))]), encoded([("u", 2, 5, b"", b"x", ())])]
    assert list(unframed(framed(chunks))) == chunks
    assert [decoded(chunk) for chunk in chunks] == [
        [("t", -1, 0, None, None, (("h", None),))],
        [("u", 2, 5, b"", b"x", ())],
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"topic": "t"}, "requires staging"),
        ({"staging": "/s"}, "requires register_topic"),
        ({"topic": "t", "staging": "s3://KEY:SECRET@b"}, "pass credentials as options"),
        ({"topic": "t", "exactly_once": False, "staging": "/s"}, "belong to exactly_once"),
        ({"topic": "t", "staging": "/s", "shards": 0}, "shards=0"),
        ({"topic": "t", "staging": "/s", "name": "a/b"}, "name='a/b'"),
        ({"topic": "t", "staging": "/s", "on_lost_register": "skip"}, "on_lost_register='skip'"),
    ],
)
def test_invalid_argument_is_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WriteToKafka(SERVERS, **arguments)


@pytest.mark.parametrize("name", ["transactional.id", "acks", "enable.idempotence"])
def test_setting_of_the_transform_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}' cannot be given"):
        WriteToKafka({**SERVERS, name: "1"}, "t", staging="/s")


def test_other_runner_is_refused(tmp_path: Any) -> None:
    with pytest.raises(Exception, match="ArcbeamRunner only"), beam.Pipeline("FnApiRunner") as pipeline:
        _ = pipeline | beam.Create([(b"k", b"v")]) | WriteToKafka(SERVERS, "t", staging=str(tmp_path))
