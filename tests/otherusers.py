"""Connections of another user of this machine."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

OTHER = 65534
_PYTHON = Path("/usr/bin/python3")
"""Another user may run this one; the one of the tests may be in a private folder."""

needs_root = pytest.mark.skipif(
    os.getuid() != 0 or not _PYTHON.exists(), reason="only root can act as another user, with the system's Python"
)

# A port that passes each connection on to another one.
_RELAY = """
import socket, sys, threading
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)

def copy(source, target):
    try:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass

while True:
    client = server.accept()[0]
    further = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    for ends in ((client, further), (further, client)):
        threading.Thread(target=copy, args=ends, daemon=True).start()
"""


@contextmanager
def relayed(port: int, user: int = OTHER) -> Iterator[int]:
    """Yield a port whose connections reach a port of this machine as those of another user."""
    command = [str(_PYTHON), "-c", _RELAY, str(port)]
    relay = subprocess.Popen(command, user=user, cwd="/", stdout=subprocess.PIPE, text=True, env={})
    try:
        assert relay.stdout is not None
        yield int(relay.stdout.readline())
    finally:
        relay.kill()
        relay.communicate()


def run_as_other(*command: str, user: int = OTHER) -> subprocess.CompletedProcess[str]:
    """Run a command as another user."""
    return subprocess.run(command, user=user, group=user, extra_groups=[], cwd="/", capture_output=True, text=True)
