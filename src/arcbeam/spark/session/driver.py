"""Spark's driver, the JVM of a session: whether it has died, of what, and how to let go of a dead one.

Owns what PySpark keeps of a JVM that is gone: its classes hold the connection, and every new session would be built on
it. Only the driver process looks here.
"""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
import weakref
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

from arcbeam.errors import DriverLostError

_DYING_SECONDS = 10.0
"""How long a driver that has shut its jobs down may take to end."""

_SIGNS = re.compile(
    r"SparkContext was shut ?down|Error while sending or receiving|Answer from Java side is empty"
    r"|error occurred while trying to connect to the Java server|Connection (refused|reset)|Broken pipe"
    r"|StatusCode\.UNAVAILABLE|failed to connect to all addresses"
)
"""What is raised where a driver has gone, or is going."""

_OUT_OF_MEMORY = (52, 3)
"""Spark's own exit code for it, and that of Java's option `ExitOnOutOfMemoryError`."""

_dead: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
"""Sessions that were let go of, and of what their drivers have died."""


def death(spark: Any) -> str | None:
    """Of what the session's driver has died; None if it lives, or if that cannot be known from here."""
    if spark in _dead:
        return _dead[spark]
    gateway = SparkContext._gateway
    process: Any = getattr(gateway, "proc", None)
    if _is_remote(spark) or gateway is None:
        return None
    if process is not None:
        return None if process.poll() is None else _meaning(process.returncode)
    try:  # a JVM that has started this process
        with socket.create_connection((gateway.gateway_parameters.address, gateway.gateway_parameters.port), timeout=5):
            return None
    except OSError as e:
        return f"its gateway does not answer: {e.strerror or e}"


def lost(spark: Any, error: Exception, own: bool) -> DriverLostError | None:
    """What to raise in place of an error that came because the session's driver has died; None if it lives.

    A dead session is let go of: the next one starts anew.

    Args:
        spark: the session.
        error: what a call of Spark's has raised.
        own: the session is ours, and a later pipeline gets a new one without further ado.
    """
    if not _SIGNS.search(f"{type(error).__name__}: {error}"):
        return None
    process: Any = getattr(SparkContext._gateway, "proc", None)
    if process is not None and not _is_remote(spark):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_DYING_SECONDS)
    why = death(spark)
    if why is None:
        return None
    drop(spark, why)
    memory = (
        "give it more memory (--spark_conf spark.driver.memory=8g)" if own else "set its spark.driver.memory to more"
    )
    found = DriverLostError(
        f"Spark's driver, the Java process of the session, has died: {why}",
        f"see above what it said itself; if memory ran out, {memory}, or let fewer tasks run at once; "
        + ("the next pipeline starts a new driver" if own else "make a new SparkSession before the next pipeline"),
    )
    found.__suppress_context__ = True
    return found


def drop(spark: Any, why: str) -> None:
    """Makes PySpark forget a session whose driver is dead, and the connection to it."""
    if spark in _dead:
        return  # another thread was here; there may be a new one by now
    _dead[spark] = why
    context = SparkContext._active_spark_context
    gateway = SparkContext._gateway
    with contextlib.suppress(Exception):
        gateway.close()  # type: ignore[union-attr]
    with SparkContext._lock:
        # SUBTLE: `stop` would ask the JVM first. What it would do here itself is this.
        if context is not None:
            context._jsc = None
            with contextlib.suppress(Exception):
                context._accumulatorServer.shutdown()
        SparkContext._active_spark_context = None
        SparkContext._gateway = None
        SparkContext._jvm = None
    SparkSession._instantiatedSession = None
    SparkSession._activeSession = None
    if _is_connect(spark):
        with contextlib.suppress(Exception):
            spark.release_session_on_close = False
            spark.stop()


def _is_connect(spark: Any) -> bool:
    return type(spark).__module__.startswith("pyspark.sql.connect")


def _is_remote(spark: Any) -> bool:
    """Whether the driver is not a child of this process: a Connect server somewhere else."""
    return _is_connect(spark) and SparkContext._gateway is None


def _meaning(code: int) -> str:
    """What an exit code says."""
    if code in _OUT_OF_MEMORY:
        return f"out of memory (exit code {code})"
    number = -code if code < 0 else code - 128
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"exit code {code}"
    killer = ", as the system does when memory runs out" if number == signal.SIGKILL else ""
    return f"it was ended by {name}{killer} (exit code {code})"
