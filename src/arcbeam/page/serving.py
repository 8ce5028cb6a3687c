"""Serves the page from a thread of its own, so that signals stay the process's.

Owns the socket, TLS and the thread.
"""

from __future__ import annotations

import socket
import ssl
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn

from arcbeam.errors import SetupError
from arcbeam.jobs.exposure import check_exposure, is_loopback
from arcbeam.page.access.owntoken import own_token, token_file
from arcbeam.page.app import app_of
from arcbeam.page.sources import Source

_JOIN_SECONDS = 5.0
# Open pages have a connection without an end.
_CONFIG: dict[str, Any] = {
    "log_level": "warning",
    "access_log": False,
    "lifespan": "off",
    "timeout_graceful_shutdown": 1,
}


@dataclass(frozen=True, slots=True)
class PageSettings:
    """Where the page is served, and to whom.

    Attributes:
        port: 0: a free one.
        host: address to listen on.
        token: that browsers have to give; None: this user's own (`owntoken`), or none if it is insecure.
        certificate: PEM chain for TLS; None: no TLS.
        key: PEM key of the certificate.
        insecure: serve other users of this machine, and other machines, also without a token and TLS.
    """

    port: int = 0
    host: str = "127.0.0.1"
    token: str | None = field(default=None, repr=False)
    certificate: Path | None = None
    key: Path | None = None
    insecure: bool = False


class PageServer:
    """Serves the page. A context manager.

    Args:
        source: of its jobs.
        settings: of the server.
        remedy: what to do if the port is taken.

    Attributes:
        port: its port.
        address: of the page.
        login: the same, with the page's own token if it has one.

    Raises:
        SetupError: the port is taken, TLS does not work, or other machines could reach the page without a token and
            TLS.
        StoreError: its own token cannot be kept.
    """

    def __init__(self, source: Source, settings: PageSettings, remedy: str = "give another --port; 0: a free one"):
        check_exposure(settings, "users of the page can read and end jobs")
        host, local = settings.host, is_loopback(settings.host)
        self._socket = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((host, settings.port))
            # A connection now waits for the thread, so the address may be printed before the thread runs.
            self._socket.listen()
        except OSError as e:
            self._socket.close()
            raise SetupError(f"cannot serve the page on port {settings.port} of {host}: {e}", remedy) from e
        self.port = int(self._socket.getsockname()[1])
        named = socket.gethostname() if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
        self.address = f"{'http' if settings.certificate is None else 'https'}://{named}:{self.port}/"
        token, self.login, self._token_file = settings.token or "", self.address, None
        if settings.token is None and not settings.insecure:
            token = self._own_token()
            self.login = f"{self.address}?token={token}"
            # A port that the system chooses is another one the next time.
            self._token_file = token_file(self.port) if settings.port == 0 else None
        # Off the main thread, uvicorn installs no signal handlers.
        config = uvicorn.Config(
            app_of(source, token, local=local),
            ssl_certfile=settings.certificate,
            ssl_keyfile=settings.key,
            **_CONFIG,
        )
        try:
            config.load()
        except (OSError, ssl.SSLError) as e:
            self._socket.close()
            raise SetupError(
                f"cannot use the TLS certificate or key: {e}", "give PEM files that belong together"
            ) from e
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), name="page", daemon=True)

    def _own_token(self) -> str:
        try:
            return own_token(self.port)
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> PageServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(_JOIN_SECONDS)
        self._socket.close()
        if self._token_file is not None:
            self._token_file.unlink(missing_ok=True)
