"""Clients that expect another security.protocol or certificate than the brokers: the error says what to look at."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from arcbeam.errors import SetupError
from arcbeam.io.kafka.clients import Clients
from arcbeam.io.kafka.connection import ClientConnection
from arcbeam.io.kafka.fetching import cluster
from arcbeam.io.kafka.fetching.cluster import LibrdkafkaCluster
from arcbeam.io.kafka.trouble import AddressError, error_text, unreachable
from tests.jobs.test_server import self_signed
from tools.kafka.broker import Broker

pytestmark = pytest.mark.contract("KAFKA-01")


@pytest.fixture(autouse=True)
def _soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(cluster, "_FIRST_SECONDS", 1.0)


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[str]:
    """The address of a listener with TLS, with a certificate that clients do not know."""
    certificate, key = self_signed(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                try:
                    context.wrap_socket(connection, server_side=True).close()
                except OSError:
                    connection.close()

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


def refused(address: str, **settings: Any) -> ConnectionError:
    """Return the error of a client that asks for a topic."""
    config = {"bootstrap.servers": address, **{name.replace("_", "."): value for name, value in settings.items()}}
    with pytest.raises(ConnectionError) as raised:
        LibrdkafkaCluster(Clients(ClientConnection(config), True, "", False)).topics(["t"])
    return raised.value


@pytest.mark.parametrize("protocol", ["", "SASL_PLAINTEXT"])
def test_listener_with_tls_that_gets_plain_text(listener: str, protocol: str) -> None:
    more = {"security_protocol": protocol, "sasl_mechanism": "PLAIN", "sasl_username": "me", "sasl_password": "x"}
    error = refused(listener, **(more if protocol else {}))
    assert str(error).endswith(
        "Perhaps brokers end the connections, because they expect another security.protocol there: the client's is "
        + (protocol or "plaintext")
    )
    assert not isinstance(error, AddressError)


def test_certificate_that_is_not_known(listener: str) -> None:
    error = refused(listener, security_protocol="SSL")
    assert f"{listener}: " in str(error)
    assert "certificate verify failed" in str(error)
    assert "Check bootstrap.servers, security.protocol, ssl.ca.location" in unreachable(listener, error, 1)
    assert isinstance(error, AddressError)


def test_listener_without_tls(broker: Broker) -> None:
    error = refused(broker.address, security_protocol="SSL")
    assert f"{broker.address}: SSL handshake failed" in str(error)
    assert "connecting to a PLAINTEXT broker listener?" in str(error)


def test_connection_that_ends_in_a_handshake_is_one_trouble() -> None:
    ended = "Disconnected: SSL connection closed by peer"
    whole = f"SSL handshake failed: {ended}: connecting to a PLAINTEXT broker listener?"
    state = " (after 3ms in state SSL_HANDSHAKE)"
    assert error_text(f"ssl://b:1/bootstrap: {whole}{state}") == f"ssl://b:1: {whole}"
    assert error_text(f"ssl://b:1/bootstrap: {ended}{state}") == f"ssl://b:1: {whole}"
    assert error_text("b:1/2: Disconnected (after 7ms in state UP)") == "b:1/2: Disconnected"


def test_mechanism_that_brokers_do_not_have(broker: Broker) -> None:
    more = {"sasl_mechanism": "SCRAM-SHA-256", "sasl_username": "me", "sasl_password": "x"}
    error = refused(broker.secured, security_protocol="SASL_PLAINTEXT", **more)
    assert "broker's supported mechanisms: PLAIN" in str(error)
    assert isinstance(error, AddressError)


def test_file_of_certificates_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(
        SetupError, match=rf"file {tmp_path}/none of 'ssl.ca.location' does not exist on the host \w"
    ) as e:
        refused("127.0.0.1:9", security_protocol="SSL", ssl_ca_location=str(tmp_path / "none"))
    assert "put the file there on all hosts that run tasks" in str(e.value)


def test_another_wrong_setting_is_not_taken_for_a_missing_file() -> None:
    # "probe" means the system's certificates.
    with pytest.raises(SetupError, match=r"fetch\.min\.bytes") as e:
        refused("127.0.0.1:9", ssl_ca_location="probe", fetch_min_bytes="x")
    assert "does not exist" not in str(e.value)


def test_file_without_certificates(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(SetupError, match=r"client: Failed to create admin client: ssl\.ca\.location failed.*no cert"):
        refused("127.0.0.1:9", security_protocol="SSL", ssl_ca_location=str(tmp_path / "empty"))
