"""Serves the page from a thread of its own, so that signals stay the process's.

Owns the socket and the thread.
"""

from __future__ import annotations

import socket
import threading
from typing import Any

import uvicorn
from starlette.applications import Starlette

from arcbeam.errors import SetupError

_HOST = "127.0.0.1"
_JOIN_SECONDS = 5.0
# Open pages have a connection without an end.
_CONFIG: dict[str, Any] = {
    "log_level": "warning",
    "access_log": False,
    "lifespan": "off",
    "timeout_graceful_shutdown": 1,
}


class PageServer:
    """Serves the page on this machine only. A context manager.

    Args:
        app: the page.
        port: 0: a free one.

    Raises:
        SetupError: the port is taken.
    """

    def __init__(self, app: Starlette, port: int) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((_HOST, port))
            # A connection now waits for the thread, so the address may be printed before the thread runs.
            self._socket.listen()
        except OSError as e:
            self._socket.close()
            raise SetupError(f"cannot serve the page on port {port}: {e}", "give another --port; 0: a free one") from e
        self.address = f"http://{_HOST}:{self._socket.getsockname()[1]}/"
        # Off the main thread, uvicorn installs no signal handlers.
        self._server = uvicorn.Server(uvicorn.Config(app, **_CONFIG))
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), name="page", daemon=True)

    def __enter__(self) -> PageServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(_JOIN_SECONDS)
        self._socket.close()
