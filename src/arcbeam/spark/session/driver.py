"""Spark's driver, the JVM of a session: whether it has died, of what cause, and how to drop a dead one.

Owns what PySpark keeps of a JVM that has ended: its classes hold the connection, and every new session would use it.
Only the driver process uses this module.
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

from arcbeam.errors import DriverLostError
from arcbeam.spark.session.ownership import forget_gateway, is_own

_DYING_SECONDS = 10.0
"""How long a driver may take to end after it has shut its jobs down."""

_SIGNS = re.compile(
    r"SparkContext was shut ?down|Error while sending or receiving|Answer from Java side is empty"
    r"|error occurred while trying to connect to the Java server|Connection (refused|reset)|Broken pipe"
    r"|StatusCode\.UNAVAILABLE|failed to connect to all addresses"
)
"""Texts of exceptions that are raised when a driver has ended or is ending."""

_ANSWERED = re.compile(r"Job aborted due to stage failure")
"""The text of a driver about a failed task. Its connection to the task's worker may have broken, with such a sign."""

_OUT_OF_MEMORY = (52, 3)
"""The exit codes for it: Spark's own, and that of Java's option `ExitOnOutOfMemoryError`."""

_dead: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
"""Dropped sessions, and the causes of their drivers' deaths."""


def death(spark: Any) -> str | None:
    """Return why the session's driver died; None if it lives, or if that cannot be known from this process."""
    if spark in _dead:
        return _dead[spark]
    gateway = SparkContext._gateway
    process: Any = getattr(gateway, "proc", None)
    if _is_remote(spark) or gateway is None:
        return None
    if process is not None:
        return None if process.poll() is None else _meaning(process.returncode)
    try:  # a JVM that started this process
        with socket.create_connection((gateway.gateway_parameters.address, gateway.gateway_parameters.port), timeout=5):
            return None
    except OSError as e:
        return f"its gateway does not answer: {e.strerror or e}"


def lost(spark: Any, error: Exception) -> DriverLostError | None:
    """Return the error to raise if an exception came because the session's driver has died; None if it lives.

    A dead session is dropped, so that the next one starts a new driver.

    Args:
        spark: the session.
        error: the exception that a call of Spark raised.
    """
    text = f"{type(error).__name__}: {error}"
    if not _SIGNS.search(text):
        return None
    process: Any = getattr(SparkContext._gateway, "proc", None)
    if process is not None and not _is_remote(spark) and not _ANSWERED.search(text):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_DYING_SECONDS)
    why = death(spark)
    if why is None:
        return None
    drop(spark, why)
    own = is_own(spark)
    memory = (
        "give it more memory (--spark_conf spark.driver.memory=8g)" if own else "set its spark.driver.memory to more"
    )
    found = DriverLostError(
        f"Spark's driver, the session's Java process, has died: {why}",
        f"check its output above. If it ran out of memory, {memory}, or run fewer tasks concurrently. "
        + ("The next pipeline starts a new driver" if own else "Make a new SparkSession before the next pipeline"),
    )
    found.__suppress_context__ = True
    return found


def drop(spark: Any, why: str) -> None:
    """Make PySpark forget a session whose driver is dead, and the connection to it."""
    if spark in _dead:
        return  # another thread has dropped it, and there may already be a new one
    _dead[spark] = why
    context = SparkContext._active_spark_context
    gateway = SparkContext._gateway
    with contextlib.suppress(Exception):
        gateway.close()  # type: ignore[union-attr]
    with SparkContext._lock:
        # SUBTLE: `stop` would call the JVM first. The following is what it would do in this process.
        if context is not None:
            context._jsc = None
            with contextlib.suppress(Exception):
                context._accumulatorServer.shutdown()
        forget_gateway()
    if _is_connect(spark):
        with contextlib.suppress(Exception):
            spark.release_session_on_close = False
            spark.stop()


def _is_connect(spark: Any) -> bool:
    return type(spark).__module__.startswith("pyspark.sql.connect")


def _is_remote(spark: Any) -> bool:
    """Return whether the driver is not a child of this process, but a Connect server elsewhere."""
    return _is_connect(spark) and SparkContext._gateway is None


def _meaning(code: int) -> str:
    """Return what an exit code means."""
    if code in _OUT_OF_MEMORY:
        return f"out of memory (exit code {code})"
    number = -code if code < 0 else code - 128
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"exit code {code}"
    killer = ", which the system sends when memory runs out" if number == signal.SIGKILL else ""
    return f"killed by {name}{killer} (exit code {code})"
