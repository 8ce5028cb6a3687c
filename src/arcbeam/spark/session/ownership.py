"""Whose session it is: one that arcbeam made, the user's, or that of the parent of a forked process.

Owns what a forked child does with the sessions that it inherits: it leaves them to its parent. Must not know how
sessions are made.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import weakref
from threading import RLock
from typing import Any, Final

from pyspark import SparkContext
from pyspark.sql import SparkSession

from arcbeam.errors import SetupError
from arcbeam.spark.session.remote import is_connect

_own: weakref.WeakSet[Any] = weakref.WeakSet()
_inherited: weakref.WeakSet[Any] = weakref.WeakSet()
"""In a forked child: sessions that it must not use."""

_retained: Final[list[Any]] = []
"""In a forked child: what PySpark had of them. SUBTLE: its finalizers would use the connections of the parent."""


def note_own(spark: Any) -> None:
    """Note that arcbeam made a session."""
    _own.add(spark)


def is_own(spark: Any) -> bool:
    """Return whether arcbeam made the session, not the user."""
    return spark in _own


def is_inherited(spark: Any) -> bool:
    """Return whether a session is that of this process's parent, which forked it: nothing may be called on it."""
    if spark in _inherited:
        return True
    # This module may have been imported after the fork.
    process = getattr(SparkContext._gateway, "proc", None)
    return spark is SparkSession._instantiatedSession and process is not None and _is_of_another_process(process)


def refuse_inherited(spark: Any) -> None:
    """Refuse the active session, if there is one, if it is that of this process's parent.

    Raises:
        SetupError: it is.
    """
    if spark is None or not is_inherited(spark):
        return
    earlier = "fork before the session is made, or start the process with multiprocessing's 'spawn' or 'forkserver'"
    if is_connect(spark):
        raise SetupError(
            "this process was forked from one with a session of a Spark Connect server, and gRPC does not work in it",
            earlier,
        )
    raise SetupError(
        "the active Spark session belongs to the parent of this process, which was forked",
        f"{earlier}; or make no session: then arcbeam makes one for each process",
    )


def _is_of_another_process(process: subprocess.Popen[bytes]) -> bool:
    if process.returncode is not None:
        return False
    try:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        # A process that ignores SIGCHLD does not see its dead children, either.
        with contextlib.suppress(OSError):
            os.kill(process.pid, 0)
            return True
    return False


def _leave_to_parent() -> None:
    """In a forked child, forget the sessions that arcbeam made, so that it makes another one; note the user's."""
    session: Any = SparkSession._instantiatedSession
    if session is not None and session in _own:
        _forget_classic()
    elif session is not None:
        _inherited.add(session)
    connect: Any = sys.modules.get("pyspark.sql.connect.session")
    if connect is not None:
        of_thread = getattr(connect.SparkSession._active_session, "session", None)
        _inherited.update(found for found in (connect.SparkSession._default_session, of_thread) if found is not None)


def _forget_classic() -> None:
    """Make PySpark forget the classic session and its gateway, without a word on the parent's connections."""
    gateway: Any = SparkContext._gateway
    _retained.extend((SparkContext._active_spark_context, SparkSession._instantiatedSession, gateway))
    SparkContext._lock = RLock()  # another thread of the parent may have held it
    forget_gateway()
    if gateway is None:
        return
    client = gateway._gateway_client
    client.is_connected = False
    for connection in client.deque:
        # SUBTLE: py4j shuts a connection down before it closes it: then it would end in the parent, too.
        with contextlib.suppress(OSError, AttributeError):
            os.close(connection.socket.detach())
        connection.socket = None
    # Java ends with the last copy of the other end of its standard input. Only the parent must have one.
    if (process := getattr(gateway, "proc", None)) is not None and process.stdin is not None:
        process.stdin.close()


def forget_gateway() -> None:
    """Make PySpark forget the JVM and its sessions, so that the next session starts another one."""
    SparkContext._active_spark_context = None
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkSession._instantiatedSession = None
    SparkSession._activeSession = None


os.register_at_fork(after_in_child=_leave_to_parent)
