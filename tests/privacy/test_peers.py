"""The user at the other end of a connection within this machine."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from arcbeam.secrets import peers
from arcbeam.secrets.peers import is_own_process
from tests.otherusers import needs_root, relayed

pytestmark = [
    pytest.mark.contract("OPS-05"),
    pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell"),
]


def named(address: tuple[str, int]) -> str:
    return f"ipv6:%5B{address[0]}%5D:{address[1]}" if ":" in address[0] else f"ipv4:{address[0]}:{address[1]}"


@pytest.fixture(params=["127.0.0.1", "::1"])
def server(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    try:
        made = socket.create_server((request.param, 0), family=family)
    except OSError:
        pytest.skip("a machine without IPv6")
    with made:
        yield made


def test_process_of_this_user_is_known(server: socket.socket) -> None:
    port = server.getsockname()[1]
    with socket.create_connection(server.getsockname()[:2]) as client:
        accepted, peer = server.accept()
        with accepted:
            assert is_own_process(named(peer[:2]), port)
            assert not is_own_process(named(peer[:2]), port + 1), "of a connection to another port"
            client.close()
            # A closed socket seems to be of root, who may do everything.
            assert not is_own_process(named(peer[:2]), port)


def test_mapped_address_is_found() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as client,
    ):
        # As Java's sockets.
        client.connect(("::ffff:127.0.0.1", server.getsockname()[1]))
        accepted, peer = server.accept()
        with accepted:
            assert is_own_process(named(peer), server.getsockname()[1])


@needs_root
@pytest.mark.parametrize(("user", "own"), [(65534, False), (0, True)])
def test_process_of_another_user_is_known(user: int, own: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with relayed(port, user) as relay, socket.create_connection(("127.0.0.1", relay)):
            accepted, peer = server.accept()
            with accepted:
                assert is_own_process(named(peer), port) is own


def test_root_is_admitted_by_each_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    table = tmp_path / "tcp"
    ends = f"{int.from_bytes(bytes([127, 0, 0, 1]), sys.byteorder):08X}"
    line = f"0: {ends}:9C40 {ends}:1F90 01 0:0 0:0 0 %s 0 %s 1 0"
    monkeypatch.setattr(peers, "_TABLES", (table,))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    def admitted(*rows: tuple[int, int]) -> bool:
        table.write_text("\n".join(["header", *(line % row for row in rows)]))
        return is_own_process("ipv4:127.0.0.1:40000", 8080)

    assert [admitted((user, 7)) for user in (0, 1000, 1001)] == [True, True, False]
    assert not admitted((1000, 7), (1001, 8)), "one end, two users"
    assert not admitted((0, 0)), "a socket that is closed"
    assert not admitted()
    assert not is_own_process("unix:", 8080)
    monkeypatch.setattr(peers, "_TABLES", (table, tmp_path / "missing"))
    assert admitted((0, 7)), "a machine without IPv6"
    assert not admitted()
    monkeypatch.setattr(peers, "_TABLES", (tmp_path / "missing",))
    assert is_own_process("ipv4:127.0.0.1:40000", 8080), "the system does not tell"
