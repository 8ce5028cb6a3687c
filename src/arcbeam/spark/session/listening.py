"""The sockets of a session that arcbeam makes: they listen on this machine's loopback address, with authentication.

Spark and its Python workers talk by Unix domain sockets in a folder of this user. Over TCP, each task would wait 40 ms:
Spark sends a small piece only when the one before is acknowledged, and a worker that has nothing to send acknowledges
late (see `loopback`).

Owns the settings, and the environment of the JVM, of a session whose driver and executors are all on this machine.
Spark's own default is the machine's external address without authentication: any process that reaches the port of
Spark's RPC can send it objects to deserialize. The user's settings have priority. Sessions of users and clusters are
not changed, because their executors must reach the driver.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from arcbeam.spark.session.sparklog import conf_folder
from arcbeam.store.blobs.claims import FolderClaim, sweep
from arcbeam.store.blobs.private import make_folder, own_folder

LOOPBACK = "127.0.0.1"

ADDRESSES = ("SPARK_LOCAL_IP", "SPARK_LOCAL_HOSTNAME")
"""Environment variables by which a user sets the address."""

_ON_LOOPBACK = {
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
    # For a Connect server that the session starts; other sessions ignore it.
    "spark.connect.grpc.binding.address": LOOPBACK,
}
_AUTHENTICATE, _SECRET = "spark.authenticate", "spark.authenticate.secret"
_UNIX_SOCKETS, _UNIX_FOLDER = "spark.python.unix.domain.socket.enabled", "spark.python.unix.domain.socket.dir"
_FOLDER_BYTES_MAX = 60
"""The path of a socket has at most 103 bytes on all systems, and Spark adds a name of 43."""


@dataclass(frozen=True, slots=True)
class Listening:
    """Settings that make a session listen on loopback only.

    Attributes:
        settings: the session's settings.
        environ: variables of its JVM, in addition to this process's environment.
    """

    settings: dict[str, str] = field(default_factory=dict)
    environ: dict[str, str] = field(default_factory=dict)


def on_loopback(master: str, chosen: Mapping[str, str], environ: Mapping[str, str] | None = None) -> Listening:
    """Return settings that keep the sockets of a session, which starts a JVM, on this machine.

    Args:
        master: the session's master.
        chosen: the user's settings of the session.
        environ: Spark's environment (default: this process's environment).

    Returns:
        Nothing for a master elsewhere. No addresses if the user sets one in the environment.

    Raises:
        StoreError: another user may have created the folder of sockets.
    """
    env = os.environ if environ is None else environ
    if not is_on_this_machine(master):
        return Listening()
    defaults = _defaults(env)

    def is_set(key: str) -> bool:
        return key in chosen or key in env.get("PYSPARK_SUBMIT_ARGS", "") or key in defaults

    settings, variables = {}, {}
    if not any(env.get(name) for name in ADDRESSES):
        settings = {key: value for key, value in _ON_LOOPBACK.items() if not is_set(key)}
        # For what has no setting: the UI, and all processes of a local cluster.
        variables = {ADDRESSES[0]: LOOPBACK}
    if not is_set(_AUTHENTICATE):
        settings[_AUTHENTICATE] = "true"
        # Within one JVM Spark makes a secret itself.
        if master.startswith("local-cluster") and not is_set(_SECRET):
            settings[_SECRET] = secrets.token_hex(32)
    # SUBTLE: these sockets have no authentication but the mode of their folder.
    if not is_set(_UNIX_SOCKETS) and not is_set(_UNIX_FOLDER) and (folder := _socket_folder()):
        settings |= {_UNIX_SOCKETS: "true", _UNIX_FOLDER: str(folder)}
    return Listening(settings, variables)


_claims: list[FolderClaim] = []
"""Spark does not remove all sockets. By its claim, a later process knows and removes the folder of a dead one."""


def _socket_folder() -> Path | None:
    """Return a new folder for a session's sockets; None if its path is too long, or if this system has none."""
    root = own_folder("sockets")
    sweep(root)
    folder = root / uuid.uuid4().hex[:8]
    if len(os.fsencode(folder)) > _FOLDER_BYTES_MAX or not hasattr(socket, "AF_UNIX"):
        return None
    make_folder(folder)
    _claims.append(FolderClaim(folder))
    return folder


def is_on_this_machine(master: str) -> bool:
    """Return whether driver and executors of a master are all processes of this machine."""
    return re.match(r"local(-cluster)?(\[|$)", master) is not None


def _defaults(env: Mapping[str, str]) -> frozenset[str]:
    """Return the names of the settings in Spark's file of defaults."""
    with contextlib.suppress(OSError):
        text = (conf_folder(env) / "spark-defaults.conf").read_text(encoding="utf-8", errors="replace")
        return frozenset(re.findall(r"^\s*(spark\.[^\s=:]+)", text, re.MULTILINE))
    return frozenset()
