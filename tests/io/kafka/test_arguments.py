"""Arguments and settings that cannot be right are refused when the pipeline is made, with what is intended."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime
from typing import Any

import pytest
from apache_beam.utils.timestamp import Timestamp

from arcbeam.errors import UserCodeError
from arcbeam.harness.bundle.usererrors import described
from arcbeam.io.kafka import OffsetsGoneError, ReadFromKafka, TopicGoneError, WriteToKafka
from arcbeam.io.kafka.discovery import BrokersAwayError, MissingError
from arcbeam.io.kafka.outgoing import TopicRefusedError

SERVERS = {"bootstrap.servers": "localhost:9"}
JAVA = "org.apache.kafka.common.serialization.LongDeserializer"
pytestmark = pytest.mark.contract("KAFKA-01")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"start": 1_700_000_000_000},
            r"In milliseconds it is 2023-11-14 22:13 UTC; if that is intended, divide by 1,000$",
        ),
        ({"start": 1_700_000_000_000_000}, "In microseconds it is 2023-11-14"),
        ({"stop": -1}, r"stop=-1\).*not between 1973.* For an offset give {\(topic, partition\): offset}"),
        ({"start": 5}, "For an offset give"),
        ({"start": datetime(2026, 1, 1)}, "no time zone; use for example"),
        ({"start": {("t", 0): -2}}, r"the offset -2 of \('t', 0\)"),
        ({"start": {("t", -1): 2}}, r"start\): \('t', -1\) is not a pair of a topic and the number of a partition"),
        ({"start": {"t": 2}}, "'t' is not a pair"),
        ({"start": {}}, "expected offsets"),
        ({"start": {("u", 0): 2}}, "start.*the topic 'u' has an offset, but is not read"),
        ({"start": {("t", 0): 7}, "stop": {("t", 0): 3}}, r"stop is 3 for \('t', 0\), before start, which is 7"),
        ({"topics": ["t", "u", "t"]}, "'t' is given twice"),
        ({"topics": [b"t"]}, "b't' is not the name of a topic"),
        ({"topics": None, "topic_partitions": [("t", -1)]}, r"\('t', -1\) is not a pair"),
        ({"topics": None, "topic_partitions": [("t", 1), ("t", 1)]}, r"\('t', 1\) is given twice"),
        ({"topics": None, "topic_pattern": "a(b"}, r"topic_pattern='a\(b'\): not a regular expression: .* position 1"),
    ],
)
def test_invalid_place_is_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ReadFromKafka(SERVERS, **{"topics": ["t"], **arguments})


@pytest.mark.parametrize(
    "start", [1_700_000_000, 1_700_000_000.0, Timestamp(1_700_000_000), datetime.fromtimestamp(1.7e9, UTC)]
)
def test_times_are_equal(start: Any) -> None:
    assert ReadFromKafka(SERVERS, ["t"], start=start)._wanted.start == 1_700_000_000_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"start_read_time": 5}, r"has no argument 'start_read_time': use start.*not milliseconds"),
        ({"max_num_records": 5}, "use stop"),
        ({"expansion_service": "x"}, "no Java here"),
        ({"topic_patern": "x"}, r"did you mean 'topic_pattern'\?"),
        ({"xyz": "x"}, "it has consumer_config, topics"),
        ({"value_deserializer": JAVA}, "This is a Java class: give none for bytes"),
        ({"key_deserializer": 5}, "key_deserializer=5.*expected a function of bytes$"),
        ({"start": [3]}, r"start=\[3\]\): expected one of"),
        ({"start": True}, r"start=True\): expected one of"),
        ({"read_committed": "no"}, r"\(read_committed='no'\): expected True or False"),
        ({"commit_offset_in_finalize": "no"}, r"\(commit_offset_in_finalize='no'\): expected True or False"),
    ],
)
def test_argument_of_java_or_beam_is_explained(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        ReadFromKafka(SERVERS, ["t"], **arguments)


def test_java_serializer_gets_an_example_that_serializes() -> None:
    with pytest.raises(TypeError, match=r"a Python function such as str\.encode$"):
        WriteToKafka(SERVERS, "t", staging="s", value_serializer=JAVA)
    with pytest.raises(TypeError, match=r"a Python function such as bytes\.decode$"):
        ReadFromKafka(SERVERS, ["t"], value_deserializer=JAVA)


@pytest.mark.parametrize("kind", [MissingError, BrokersAwayError, OffsetsGoneError, TopicGoneError, TopicRefusedError])
def test_mistakes_of_configuration_are_no_errors_of_user_code(kind: type[Exception]) -> None:
    # Errors of user code are shown with a traceback, and with the element: here a chunk of keys and values.
    error = pickle.loads(pickle.dumps(kind("the topic t does not exist")))
    found = described(error, "Read")
    assert (type(found), str(found)) == (kind, "the topic t does not exist")
    assert not isinstance(found, UserCodeError)


def test_argument_of_beams_writer_is_explained() -> None:
    with pytest.raises(
        TypeError, match="WriteToKafka has no argument 'with_headers': elements that are ProducerRecords"
    ):
        WriteToKafka(SERVERS, "t", with_headers=True)


@pytest.mark.parametrize("seconds", ["1", True, -1, float("nan")])
def test_interval_that_is_not_a_number_is_refused(seconds: Any) -> None:
    with pytest.raises(ValueError, match=r"discovery_seconds=.*expected a number above 0, or None"):
        ReadFromKafka(SERVERS, ["t"], discovery_seconds=seconds)


def test_flags_of_the_writer_are_checked() -> None:
    with pytest.raises(ValueError, match=r"shards=True\): expected a number from 1 to 256"):
        WriteToKafka(SERVERS, "t", staging="/x", shards=True)
    with pytest.raises(TypeError, match=r"exactly_once='no'\): expected True or False"):
        WriteToKafka(SERVERS, "t", exactly_once="no")  # type: ignore[arg-type]


def test_list_of_topics_to_write_is_refused() -> None:
    with pytest.raises(TypeError, match=r"topic=\['t'\]\): expected the name of a topic"):
        WriteToKafka(SERVERS, ["t"], exactly_once=False)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fetch.wait.maxms": 5}, r"no setting 'fetch\.wait\.maxms': did you mean 'fetch\.wait\.max\.ms'\?"),
        ({"fetch.max.wait.ms": 5}, r"librdkafka's name is 'fetch\.wait\.max\.ms'"),
        ({"value.deserializer": JAVA}, "pass a function as value_deserializer"),
        ({"ssl.truststore.location": "x.jks"}, r"ssl\.ca\.location"),
        (
            {"sasl.jaas.config": 'required password="x";'},
            r"no setting 'sasl\.jaas\.config': librdkafka has 'sasl\.username'",
        ),
        (
            {"ssl.truststore.password": "x"},
            r"no setting 'ssl\.truststore\.password': librdkafka has 'ssl\.ca\.location'",
        ),
        ({"something": 1}, "names are those of librdkafka"),
        ({"security.protocol": "SASL_SLL"}, 'Invalid value "SASL_SLL" for configuration property "security.protocol"'),
        ({"fetch.min.bytes": "many"}, r"fetch\.min\.bytes"),
    ],
)
def test_misspelled_setting_is_named(settings: dict[str, Any], message: str) -> None:
    for make, argument in ((ReadFromKafka, "consumer_config"), (WriteToKafka, "producer_config")):
        with pytest.raises(ValueError, match=rf"{argument}.*{message}"):
            make({**SERVERS, **settings}, ["t"])


def test_misspelled_credential_is_named() -> None:
    with pytest.raises(
        ValueError, match=r"credentials: there is no setting 'sasl\.pasword': did you mean 'sasl\.password'\?"
    ):
        ReadFromKafka(SERVERS, ["t"], credentials={"sasl.pasword": "KAFKA_PASSWORD"})
    ReadFromKafka(SERVERS, ["t"], credentials={"sasl.password": "KAFKA_PASSWORD", "sasl.username": "KAFKA_USER"})


def test_settings_are_checked_without_a_client() -> None:
    # No file is read where the pipeline is made: only the workers have it.
    config = {**SERVERS, "security.protocol": "SSL", "ssl.ca.location": "/does/not/exist", "client.id": "me"}
    ReadFromKafka(config, ["t"])
    WriteToKafka(config, "t", exactly_once=False)
