from __future__ import annotations

import json
import os
import pickle
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest

from arcbeam.errors import SetupError
from arcbeam.io.kafka import ReadFromKafka
from arcbeam.io.kafka.connection import ClientConnection
from arcbeam.runner.jobgraph import job_graph_to_store
from arcbeam.secrets import declare_settings, is_secret, parted
from arcbeam.spark.tasks.shipping import WorkerSetup

SERVERS = {"bootstrap.servers": "localhost:9"}
pytestmark = pytest.mark.contract("KAFKA-05")


@pytest.mark.parametrize("name", ["sasl.password", "ssl.key.pem", "ssl.key.password", "sasl.oauthbearer.client.secret"])
def test_secret_setting_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}' is a secret.*credentials="):
        ReadFromKafka({**SERVERS, name: "x"}, ["t"])


def test_setting_of_the_transform_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'auto\.offset\.reset' cannot be given: use start"):
        ReadFromKafka({**SERVERS, "auto.offset.reset": "earliest"}, ["t"])


def test_missing_servers_are_named() -> None:
    with pytest.raises(ValueError, match=r"bootstrap\.servers"):
        ReadFromKafka({}, ["t"])


def test_environment_gives_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = ClientConnection.checked("x", SERVERS, {"sasl.password": "KAFKA_PASSWORD"}, {})
    with pytest.raises(SetupError, match="KAFKA_PASSWORD is not set"):
        connection.settings()
    monkeypatch.setenv("KAFKA_PASSWORD", "s3cret")
    assert connection.settings()["sasl.password"] == "s3cret"
    assert b"s3cret" not in pickle.dumps(connection)


def test_setting_of_the_variable_is_secret_whatever_its_name() -> None:
    given = "spark_conf:spark.executorEnv.KPW_OF_TEST"
    options = {"spark_conf": ["spark.executorEnv.KPW_OF_TEST=s3cret", "spark.executorEnv.HOME=/x"]}
    assert parted(options).secrets == {}
    ReadFromKafka(SERVERS, ["t"], credentials={"sasl.password": "KPW_OF_TEST"})
    stored = job_graph_to_store("j", b"", options, WorkerSetup()).job_graph
    assert stored.options == {"spark_conf": ["spark.executorEnv.HOME=/x"]}
    assert stored.secrets == (given,)
    assert (is_secret("spark.yarn.appMasterEnv.KPW_OF_TEST"), is_secret("KPW_OF_TEST")) == (True, False)


def test_names_of_a_stored_job_are_secret_where_it_is_resumed() -> None:
    declare_settings(["spark_conf:spark.executorEnv.KPW_OF_RESUMED", "s3_secret_access_key"])
    assert is_secret("spark.executorEnv.KPW_OF_RESUMED")


def _read() -> Mapping[str, str]:
    return {"sasl.password": os.environ["KAFKA_SECRET_OF_TEST"]}


@pytest.mark.parametrize("how", ["constant", "closure", "argument", "part", "bytes"])
def test_function_with_the_secret_is_refused(how: str) -> None:
    secret, longer = "".join(["s3", "cret"]), "a-much-longer-s3cret"
    text, data = json.dumps({"password": longer}), secret.encode()
    functions: dict[str, Callable[[], Mapping[str, str]]] = {
        "constant": lambda: {"sasl.password": "s3cret"},
        "closure": lambda: {"sasl.password": secret},
        "argument": partial(dict, **{"sasl.password": secret}),
        "part": lambda: {"sasl.password": json.loads(text)["password"]},
        "bytes": lambda: {"sasl.password": data.decode()},
    }
    with pytest.raises(ValueError, match=r"contains the value of 'sasl\.password'.*os\.environ") as error:
        ReadFromKafka(SERVERS, ["t"], credentials=functions[how])
    assert "s3cret" not in str(error.value)


def test_function_that_reads_the_secret_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    def function() -> Mapping[str, str]:
        return {"sasl.password": os.environ["KAFKA_SECRET_OF_TEST"], "sasl.username": "me"}

    ReadFromKafka(SERVERS, ["t"], credentials=function)
    # This is also a part of this file's name.
    monkeypatch.setenv("KAFKA_SECRET_OF_TEST", "kafka")
    ReadFromKafka(SERVERS, ["t"], credentials=function)


def test_function_gives_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_SECRET_OF_TEST", "s3cret")
    connection = ClientConnection.checked("x", SERVERS, _read, {})
    assert connection.settings({"group.id": "g"}) == {
        "log_level": 2,
        **SERVERS,
        "sasl.password": "s3cret",
        "group.id": "g",
    }
    assert "s3cret" not in repr(connection)


def test_error_of_a_client_hides_credentials() -> None:
    def refuse(settings: dict[str, Any]) -> None:
        raise ValueError(f'Invalid value "{settings["sasl.password"]}" for configuration property "sasl.password"')

    connection = ClientConnection(SERVERS, lambda: {"sasl.password": "s3cret"})
    with pytest.raises(SetupError) as error:
        connection.made(refuse)
    assert "s3cret" not in str(error.value)
    assert error.value.__suppress_context__


@pytest.mark.parametrize("value", ["my secret!", "hunter2", "Hunter2", "2HUNTER", ""])
def test_value_is_not_the_name_of_a_variable(value: str) -> None:
    with pytest.raises(
        ValueError, match=r"credentials\['sasl\.password'\]: expected the name of an environment variable"
    ) as error:
        ReadFromKafka(SERVERS, ["t"], credentials={"sasl.password": value})
    assert not value or value not in str(error.value)


def _raises() -> Mapping[str, Any]:
    raise ValueError("s3cret")


@pytest.mark.parametrize(
    ("function", "reported"),
    [(_raises, "raised ValueError; its text is not shown"), (lambda: ["s3cret"], "returned list, not settings")],
)
def test_function_that_fails_is_shown_without_its_text(function: Callable[[], Any], reported: str) -> None:
    with pytest.raises(SetupError, match=f"the function of credentials {reported}") as error:
        ClientConnection(SERVERS, function).settings()
    assert "s3cret" not in "".join(traceback.format_exception(error.value))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "give one of topics, topic_pattern and topic_partitions"),
        ({"topics": "t"}, "are lists"),
        ({"topics": ["t"], "start": "first"}, "start='first'"),
        ({"topics": ["t"], "stop": "group"}, "stop='group'"),
        ({"topics": ["t"], "start": "group"}, r"requires the setting 'group\.id'"),
        ({"topics": ["t"], "commit_offset_in_finalize": True}, r"requires the setting 'group\.id'"),
        ({"topics": ["t"], "timestamp_policy": "append"}, "timestamp_policy='append'"),
        ({"topics": ["t"], "max_delay": -1}, "must not be negative"),
        ({"topics": ["t"], "discovery_seconds": 0}, "discovery_seconds=0"),
    ],
)
def test_invalid_argument_is_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ReadFromKafka(SERVERS, **arguments)


def test_stop_makes_the_read_bounded() -> None:
    pipeline = beam.Pipeline()
    assert (pipeline | "a" >> ReadFromKafka(SERVERS, ["t"], stop="latest")).is_bounded
    assert not (pipeline | "b" >> ReadFromKafka(SERVERS, ["t"])).is_bounded
    records, errors = pipeline | "c" >> ReadFromKafka(SERVERS, ["t"], stop="latest", with_errors=True)
    assert records.is_bounded
    assert errors.is_bounded


@pytest.mark.parametrize(
    ("arguments", "seconds"),
    [({"topics": ["t"]}, 1.0), ({"topics": ["t"], "stop": "latest"}, None), ({"topic_partitions": [("t", 0)]}, None)],
)
def test_search_is_repeated_where_partitions_can_appear(arguments: dict[str, Any], seconds: float | None) -> None:
    assert ReadFromKafka(SERVERS, **arguments)._seconds == seconds


def test_package_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ImportError, match=r"arcbeam\[kafka\]"):
        ReadFromKafka(SERVERS, ["t"])
