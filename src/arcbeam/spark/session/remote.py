"""Sessions of a Spark Connect server that ends or restarts while a job runs whose state is not on the server.

Owns how long PySpark's client retries, what its errors mean, and a new session on the same server. Must not know jobs.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import re
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from arcbeam.errors import ServerLostError

_LOG = logging.getLogger("arcbeam.streaming")

_RETRIES, _BACKOFF_MS_MAX = 4, 1500
"""For PySpark's client. Its own values, 15 and 60,000 ms, are ten silent minutes for each call."""

_SIGNS = re.compile(
    r"\[?(NO_ACTIVE_SESSION|INVALID_HANDLE\.SESSION_\w+|INVALID_HANDLE\.OPERATION_(NOT_FOUND|ABANDONED)"
    r"|RESPONSE_ALREADY_RECEIVED)"
    r"|Received incorrect server side session identifier|Cannot invoke RPC( on closed channel|: Channel closed)"
)
"""Beginnings of errors if another server now has the address of the session's server, or the session is closed.

Only the beginning counts: an error of a user's transform may quote anything."""


def is_connect(spark: Any) -> bool:
    """Return whether a session is one of a Connect server."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


@dataclass(slots=True)
class _Hurried:
    """The retry policies to restore when the last of `users` ends."""

    users: int
    before: Any


_hurried: weakref.WeakKeyDictionary[Any, _Hurried] = weakref.WeakKeyDictionary()
_lost: weakref.WeakSet[Any] = weakref.WeakSet()
_lock = threading.Lock()


@contextlib.contextmanager
def impatient(spark: SparkSession) -> Iterator[None]:
    """While the block runs, PySpark's client gives up on a server after seconds; the job retries, on a new session."""
    if not is_connect(spark):
        yield
        return
    with _lock:
        held = _hurried.get(spark)
        if held is None:
            held = _hurried[spark] = _Hurried(0, spark.client.get_retry_policies())
            _hurry(spark)
        held.users += 1
    try:
        yield
    finally:
        with _lock:
            held.users -= 1
            if not held.users:
                _hurried.pop(spark, None)
                spark.client.set_retry_policies(held.before)


def _hurry(spark: Any) -> None:
    # SUBTLE: imported late, because it needs gRPC, which classic sessions do not.
    from pyspark.sql.connect.client.retries import DefaultPolicy

    spark.client.set_retry_policies([DefaultPolicy(max_retries=_RETRIES, max_backoff=_BACKOFF_MS_MAX)])


def lost(spark: Any, error: BaseException) -> ServerLostError | None:
    """Return the error to raise if an exception came because the server ended or restarted; else None."""
    if not is_connect(spark) or not _is_sign(error):
        return None
    _note(spark)
    return _error(spark, error)


def _is_sign(error: BaseException) -> bool:
    code = getattr(error, "getGrpcStatusCode", None) or getattr(error, "code", None)
    status = code() if callable(code) else None
    return getattr(status, "name", "") == "UNAVAILABLE" or _SIGNS.match(str(error)) is not None


def _error(spark: Any, error: BaseException) -> ServerLostError:
    text = str(error)
    details = re.search(r'details = "(.*)"', text)
    why = details[1] if details else next((line for line in text.splitlines() if line.strip()), type(error).__name__)
    return ServerLostError(
        f"the Spark Connect server at {_address(spark)} does not answer, or has lost the session ({why[:300]})",
        "check that the server runs; the job continues when it answers",
    )


def _address(spark: Any) -> str:
    client = spark.client
    return str(getattr(getattr(client, "_builder", None), "endpoint", client.host))


def _note(spark: Any) -> None:
    """Close the client of a lost session when the process ends."""
    with _lock:
        new = spark not in _lost
        _lost.add(spark)
    if new:
        # SUBTLE: a call without an answer is still open on the channel. The garbage collector would close the channel
        # only after all other threads have ended, so the process would wait for the answer forever. And PySpark's own
        # exit function calls the server unless the client is closed.
        atexit.register(_close, spark.client)


def _close(client: Any) -> None:
    with contextlib.suppress(Exception):
        client.close()


def unreachable(spark: Any) -> ServerLostError | None:
    """Return why the server of a session cannot be reached; None if it answers, or the session is classic."""
    if not is_connect(spark):
        return None
    if spark.is_stopped:
        return _error(spark, RuntimeError("the session is closed"))
    try:
        with impatient(spark):
            spark.conf.get("spark.app.name", None)
    except Exception as e:
        return lost(spark, e)
    return None


def closed_session() -> Any:
    """Return the default session of a restarted server, which PySpark has closed by itself; None if there is none.

    `SparkSession.active()` behaves as if there had never been a session.
    """
    sessions: Any = sys.modules.get("pyspark.sql.connect.session")
    default = None if sessions is None else sessions.SparkSession._default_session
    return default if default is not None and default.is_stopped else None


def drop(spark: Any) -> None:
    """Make PySpark forget a lost session."""
    with contextlib.suppress(Exception):
        spark.release_session_on_close = False
        spark.stop()


def renewed(spark: SparkSession, settings: Mapping[str, str]) -> SparkSession:
    """Return a new session on the server of a lost one, with settings; the same session if PySpark opens none (4.3).

    Args:
        spark: the lost session.
        settings: settings of the new session.

    Raises:
        Exception: of PySpark, if the server does not answer.
    """
    try:
        new: SparkSession = spark.newSession()
    except (NotImplementedError, AttributeError):
        return spark  # the server may only have been unreachable
    try:
        _hurry(new)
        for name, value in settings.items():
            new.conf.set(name, value)
    except BaseException:
        _close(new.client)
        raise
    _note(new)
    _LOG.info("opened a new session on the Spark Connect server at %s", _address(new))
    return new
