"""The sockets of a session that arcbeam makes: they listen on this machine's loopback address, with authentication.

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
from collections.abc import Mapping
from dataclasses import dataclass, field

from arcbeam.spark.session.sparklog import conf_folder

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
    return Listening(settings, variables)


def is_on_this_machine(master: str) -> bool:
    """Return whether driver and executors of a master are all processes of this machine."""
    return re.match(r"local(-cluster)?(\[|$)", master) is not None


def _defaults(env: Mapping[str, str]) -> frozenset[str]:
    """Return the names of the settings in Spark's file of defaults."""
    with contextlib.suppress(OSError):
        text = (conf_folder(env) / "spark-defaults.conf").read_text(encoding="utf-8", errors="replace")
        return frozenset(re.findall(r"^\s*(spark\.[^\s=:]+)", text, re.MULTILINE))
    return frozenset()
