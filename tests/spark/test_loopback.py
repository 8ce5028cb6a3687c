"""Sockets to this machine are made prompt; nothing else is touched."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from arcbeam.spark import loopback

linux = pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="Linux has this setting")


def no_delay(sock: socket.socket) -> bool:
    return bool(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))


@linux
def test_a_connection_within_the_machine_holds_nothing_back(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, (tmp_path / "file").open("w"):
        with socket.create_connection(server.getsockname()) as here, socket.socketpair()[0]:
            assert not no_delay(here)
            before = set(os.listdir("/proc/self/fd"))
            loopback.be_prompt()
            assert no_delay(here)
            assert set(os.listdir("/proc/self/fd")) == before
            here.sendall(b"still open")
        # A server's own socket has no peer.
        assert not no_delay(server)


def test_where_it_is_not_known_how_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loopback, "_OPEN_FILES", Path("/nowhere"))
    loopback.be_prompt()
