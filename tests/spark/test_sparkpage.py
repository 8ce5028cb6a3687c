"""The address of Spark's page: only that of the session's own application."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import Any

import pytest
from typing_extensions import override

from arcbeam.spark.sparkpage import SparkPage

pytestmark = pytest.mark.contract("PAGE-12")


class Applications(BaseHTTPRequestHandler):
    """The part of Spark's page that lists applications."""

    found: bytes = b""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/api/v1/applications" else 404)
        self.end_headers()
        self.wfile.write(self.found)

    @override
    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serving(found: bytes, port: int = 0) -> Iterator[int]:
    """Serve an answer to the request for applications; yield the port."""
    handler = type("Handler", (Applications,), {"found": found})
    with HTTPServer(("127.0.0.1", port), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def address(**settings: str) -> str:
    """Return the address for a session with these settings."""
    page, known = SparkPage(), {"spark.driver.host": "127.0.0.1", "spark.app.id": "local-7"}
    known |= {f"spark.{name.replace('_', '.')}": value for name, value in settings.items()}
    before = set(threading.enumerate())
    page.find(SimpleNamespace(conf=known))  # type: ignore[arg-type]  # only its settings are read
    for thread in set(threading.enumerate()) - before:
        if thread.name == "spark-page":
            thread.join()
    return page.address


# In a process of its own: the session of the tests has no page.
REAL = """
import threading
from arcbeam.spark.session.sessions import SessionOptions, open_session
from arcbeam.spark.sparkpage import SparkPage

session, page = open_session(SessionOptions("local[1]", ("spark.ui.enabled=true",))), SparkPage()
page.find(session)
for thread in threading.enumerate():
    if thread.name == "spark-page":
        thread.join()
print(page.address, session.sparkContext.uiWebUrl)
"""

OURS = json.dumps([{"id": "local-7", "name": "arcbeam"}]).encode()


def test_page_of_the_session_is_found() -> None:
    with serving(OURS) as port:
        assert address(ui_port=str(port)) == f"http://127.0.0.1:{port}"
        assert address(ui_port=str(port), ui_enabled="false") == ""


@pytest.mark.parametrize("found", [json.dumps([{"id": "local-8"}]), "<html>", "{}", '["local-7"]', "[null]"])
def test_another_page_is_not_shown(found: str) -> None:
    with serving(found.encode()) as port:
        assert address(ui_port=str(port), port_maxRetries="0") == ""


def test_next_port_is_tried_as_spark_does() -> None:
    while True:
        # Nothing listens there.
        with socket.socket() as first, contextlib.ExitStack() as stack:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            try:
                stack.enter_context(serving(OURS, port + 1))
            except OSError:
                continue
            assert address(ui_port=str(port)) == f"http://127.0.0.1:{port + 1}"
            assert address(ui_port=str(port), port_maxRetries="0") == ""
            return


def test_random_port_is_unknown() -> None:
    assert address(ui_port="0") == ""


@pytest.mark.long
def test_page_of_a_real_session_is_found() -> None:
    done = subprocess.run([sys.executable, "-c", REAL], capture_output=True, text=True, timeout=300)
    found, real = done.stdout.split()
    assert found == real, done.stderr[-3000:]
