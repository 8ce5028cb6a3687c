"""Who may reach a server: this machine only, or others with a token and TLS.

Owns the rule. Must not know what is served.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Protocol

from arcbeam.errors import SetupError


class ServerExposure(Protocol):
    """The address of a server, and its protection; see `arcbeam.jobs.server.ServerSettings`."""

    @property
    def host(self) -> str:
        """The address to listen on."""

    @property
    def token(self) -> str | None:
        """The token that clients need; None: none."""

    @property
    def certificate(self) -> Path | None:
        """The PEM chain for TLS; None: no TLS."""

    @property
    def key(self) -> Path | None:
        """The PEM key of the certificate."""

    @property
    def insecure(self) -> bool:
        """Whether other machines may reach it without a token and TLS."""


def check_exposure(server: ServerExposure, why: str = "any client of a job server can run code on it") -> None:
    """Refuse to serve other machines without protection.

    Args:
        server: its address and protection.
        why: what a client of it could do.

    Raises:
        SetupError: a token or TLS is missing.
    """
    if (server.certificate is None) != (server.key is None):
        raise SetupError("TLS needs both a certificate and its key", "give --tls-cert and --tls-key")
    if server.token == "":
        raise SetupError("the token is empty")
    if is_loopback(server.host) or server.insecure:
        return
    missing = [what for what, value in (("a token", server.token), ("TLS", server.certificate)) if value is None]
    if missing:
        raise SetupError(
            f"other machines can reach {server.host}, and {why}; missing: {' and '.join(missing)}",
            "give --token-file, --tls-cert and --tls-key; or --insecure if the network itself is protected",
        )


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
