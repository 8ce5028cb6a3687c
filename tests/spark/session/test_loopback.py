"""Connections within this machine are acknowledged immediately; others are not changed."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from arcbeam.spark.session import loopback

pytestmark = pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="Linux has this setting")


def is_prompt(sock: socket.socket) -> bool:
    return bool(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK))


@pytest.fixture
def here() -> Iterator[socket.socket]:
    """Make a connection within this machine with delayed acknowledgements."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as found:
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
        assert not is_prompt(found)
        yield found


def test_local_connection_is_acknowledged_immediately(here: socket.socket, tmp_path: Path) -> None:
    with (tmp_path / "file").open("w"), socket.socketpair()[0]:
        before = set(os.listdir("/proc/self/fd"))
        loopback.enable_quickack()
        assert is_prompt(here)
        assert set(os.listdir("/proc/self/fd")) == before
        here.sendall(b"still open")


def test_default_timeout_is_not_set_on_sockets(here: socket.socket) -> None:
    socket.setdefaulttimeout(30)
    try:
        loopback.enable_quickack()
    finally:
        socket.setdefaulttimeout(None)
    assert os.get_blocking(here.fileno())
    assert not is_prompt(here)


def test_systems_without_quickack_are_unchanged(here: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loopback, "_OPEN_FILES", Path("/nowhere"))
    loopback.enable_quickack()
    assert not is_prompt(here)
