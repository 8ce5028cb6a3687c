"""The Spark session on which a pipeline runs, and its settings.

Owns finding, building and preparing sessions, classic and Connect. Must not know pipelines.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import re
import signal
import socket
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import FrameType, MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.utils import is_remote

from arcbeam.console.progressline import announce
from arcbeam.errors import SetupError
from arcbeam.secrets import is_secret, redacted
from arcbeam.spark.session import driver, heap, interpreter, localdirs, remote, sparklog
from arcbeam.spark.session.java import require_java
from arcbeam.spark.session.launch import launching
from arcbeam.spark.session.listening import Listening, on_loopback
from arcbeam.spark.session.ownership import is_inherited, is_own, note_own, refuse_inherited
from arcbeam.spark.session.remote import is_connect
from arcbeam.spark.session.submission import settings_of_spark_submit

_LOG = logging.getLogger("arcbeam")

_DEFAULT_MASTER = "local[*,4]"
"""All cores; a task whose worker died is retried (with a plain local[*] it is not)."""

_OWN_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.python.worker.reuse": "true",
    # A cancelled task ends when its worker is killed: Spark checks every two seconds, and then waits as long again.
    "spark.python.task.killTimeout": "100ms",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "true",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "true",
    # A streaming job runs many thousands of small Spark jobs. Their shuffle files are removed when Java has collected
    # the objects that represent them. And Spark keeps each job's data for its UI, even if the UI is off.
    "spark.cleaner.periodicGC.interval": "5min",
    "spark.ui.retainedJobs": "200",
    "spark.ui.retainedStages": "500",
    "spark.sql.ui.retainedExecutions": "100",
}

_ANSWER_SECONDS = 5.0

_JOB_SETTINGS = {
    # Blobs are either small, or 256 KiB each, or one large element: batches are limited by bytes, not by rows.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.execution.arrow.maxBytesPerBatch": "8388608",
    # SUBTLE: persisted data goes through Java serialization, which keeps 100 batches alive before it releases them:
    # batches of 4 MiB (Spark's limit) would be 400 MiB of heap per task.
    "spark.sql.inMemoryColumnarStorage.batchSize": "1",
    "spark.sql.adaptive.enabled": "false",
    # Compiling Java code for a plan takes longer than its few large rows: 0.4 s of a session's first job.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # SUBTLE: a task that is interrupted while its Python worker starts reports a timeout. Spark then restarts the
    # Python daemon, and all workers of the session end, also those of other jobs.
    "spark.sql.execution.interruptOnCancel": "false",
}


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """The user's choice of a session; all None: the active session, else a new one on all cores.

    Attributes:
        master: Spark's master.
        conf: settings, each as "name=value".
        remote: address of a Connect server.
        daemon: the module that forks the Python workers of a new session; None: Spark's own.
    """

    master: str | None = None
    conf: tuple[str, ...] = ()
    remote: str | None = None
    daemon: str | None = None


def open_session(options: SessionOptions) -> SparkSession:
    """Return the active session, classic or Connect; without one, a new one from the options.

    Raises:
        SetupError: a setting is malformed; Spark cannot start (no Java, an address that does not answer); the driver of
            the user's own session is dead; its Connect server has lost it; or it is that of the parent of this process.
        EnvironmentMismatchError: the workers of the user's own local session cannot run arcbeam's tasks.
    """
    settings(options)
    active = active_session() or remote.closed_session()
    refuse_inherited(active)
    if active is not None and (lost := remote.unreachable(active)) is not None:
        if not is_own(active):
            raise SetupError(lost.message, "make a new SparkSession: stop this one, and connect to the server again")
        remote.drop(active)
        _LOG.warning("%s: opening a new session", lost.message)
        if not (options.remote or options.master):
            options = replace(options, remote=_remotes.get(active))
        active = None
    if active is not None and (why := driver.death(active)) is not None:
        driver.drop(active, why)
        if not is_own(active):
            raise SetupError(
                f"the driver of the active Spark session has died: {why}",
                "make a new SparkSession; without one, arcbeam starts one of its own",
            )
        _LOG.warning("Spark's driver has died (%s): starting a new one", why)
        active = None
    if active is None:
        return new_session(options)
    if not is_own(active) and not is_connect(active) and is_local(active):
        interpreter.check(active)
    return active


def unheeded(spark: SparkSession, options: SessionOptions) -> list[str]:
    """Return the options that differ from the settings of this session, which existed before."""
    if is_connect(spark):
        return []  # its server's settings are not checked
    found = [f"--spark_remote={redacted(options.remote)}"] if options.remote else []
    if options.master and options.master != _master(spark):
        found.append(f"--spark_master={options.master}")
    wanted = settings(options)
    if localdirs.SETTING in wanted and is_own(spark):
        wanted[localdirs.SETTING] = localdirs.private(wanted[localdirs.SETTING])
    return found + [
        f"--spark_conf={key}={'…' if is_secret(key) else redacted(value)}"
        for key, value in wanted.items()
        if spark.conf.get(key, None) != value
    ]


def settings(options: SessionOptions) -> dict[str, str]:
    """Return the Spark settings in the options.

    Raises:
        SetupError: one is malformed.
    """
    return dict(_pair(text) for text in options.conf)


def new_session(options: SessionOptions) -> SparkSession:
    """Return a session built from the options; see `open_session`."""
    submitted = {} if options.remote else settings_of_spark_submit()
    master = options.master or submitted.pop("spark.master", _DEFAULT_MASTER)
    chosen = {**submitted, **settings(options)}
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder: Any = SparkSession.builder
    listening = stored = Listening()
    if options.remote:
        starts_java = options.remote.startswith("local")
        if not starts_java:
            _require_answer(options.remote, _remote_addresses(options.remote))
        builder = builder.remote(options.remote)
    else:
        starts_java = True
        _require_answer(master, _master_addresses(master))
        builder = builder.appName("arcbeam").master(master)
    if starts_java:
        require_java()
        local = _LOCAL.fullmatch(options.remote or master) is not None
        heaped = heap.settings(chosen) if local else {}
        listening = on_loopback(options.remote or master, chosen)
        stored = localdirs.in_private_folders(options.remote or master, chosen)
        logged = sparklog.settings(chosen, local=local)
        forking = {} if options.daemon is None else {"spark.python.daemon.module": options.daemon}
        chosen = {**_OWN_SETTINGS, **forking, **heaped, **listening.settings, **chosen, **logged, **stored.settings}
    for key, value in chosen.items():
        builder = builder.config(key, value)
    # The address of a Connect server may be followed by a token.
    where = (options.remote or master).partition("/;")[0]
    announce(f"starting Spark on {where}" if starts_java else f"connecting to Spark on {where}")
    started = time.monotonic()
    try:
        with (
            _uninterrupted(),
            warnings.catch_warnings(),
            launching(listening.environ | stored.environ) if starts_java else contextlib.nullcontext(),
        ):
            if starts_java:
                # A Connect server that starts here has all settings from the beginning; PySpark sets them again.
                warnings.filterwarnings("ignore", message=r".*CANNOT_MODIFY_(STATIC_)?CONFIG")
            session: SparkSession = builder.getOrCreate()
    except Exception as e:
        raise SetupError(f"no Spark session on {where}: {_first_line(e)}", _remedy(e)) from e
    note_own(session)
    if options.remote:
        _remotes[session] = options.remote
    announce(f"Spark is ready ({time.monotonic() - started:.1f} s)")
    return session


# The addresses of sessions of a Connect server.
_remotes: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Hold a Ctrl-C back until the block has ended; a second one takes effect immediately.

    If PySpark is interrupted while it starts Java, the Java process keeps running.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    pressed = False

    def hold(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        if pressed:
            before(number, frame)
        pressed = True

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is hold:  # unless a new SparkContext has installed its own handler
            signal.signal(signal.SIGINT, before)
        if pressed:
            raise KeyboardInterrupt


def active_session() -> SparkSession | None:
    """Return the session on which a pipeline would run by default, dead or alive; None if one would be built."""
    started = SparkSession._instantiatedSession
    if started is not None and not is_remote() and (is_inherited(started) or driver.death(started) is not None):
        return started  # dead, or of another process: call nothing on it
    try:
        # SUBTLE: a thread has its own "active" session; the process's default session is found from any thread.
        session: SparkSession = SparkSession.active()
    except (PySparkRuntimeError, ImportError):
        return None
    return session


def _pair(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise SetupError(
            f"--spark_conf {text!r} does not have the form key=value", "for example --spark_conf spark.ui.enabled=true"
        )
    return key.strip(), value


def _remedy(error: Exception) -> str:
    exited = isinstance(error, PySparkRuntimeError) and error.getCondition() == "JAVA_GATEWAY_EXITED"
    # If Java has ended, only its own output says why.
    output = "check Java's output above; " if exited or type(error).__name__ == "Py4JNetworkError" else ""
    return f"{output}check --spark_master and --spark_conf, and run: arcbeam doctor"


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith(": ") or "Exception" in line]
    return f"{type(error).__name__}: {(causes or lines or [''])[0].removeprefix(': ')}"


def _master_addresses(master: str) -> list[tuple[str, int]]:
    """Return hosts and ports of a standalone master; empty for masters without an address."""
    if not _MASTER.match(master):
        raise SetupError(
            f"--spark_master {master!r} is not a Spark master",
            "use local[n], local[n,4], spark://host:port, yarn, or k8s://https://host:port",
        )
    if not master.startswith("spark://"):
        return []
    return [_address(part, 7077) for part in master.removeprefix("spark://").split(",")]


def _remote_addresses(remote: str) -> list[tuple[str, int]]:
    if not remote.startswith("sc://"):
        raise SetupError(f"--spark_remote {remote!r} is not an address", "use sc://host:port, or local[n]")
    if any(os.environ.get(name) for name in ("grpc_proxy", "https_proxy", "http_proxy")):
        return []  # gRPC connects through a proxy
    return [_address(remote.removeprefix("sc://").partition("/")[0], 15002)]


def _address(text: str, default: int) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host:
        raise SetupError(f"{text!r} is not an address of Spark", "use host:port")
    return host, port or default


def _require_answer(where: str, addresses: list[tuple[str, int]]) -> None:
    """Raise SetupError if none of the addresses accepts a connection; Spark itself would try for minutes."""
    problems = []
    for host, port in addresses:
        try:
            with socket.create_connection((host, port), timeout=_ANSWER_SECONDS):
                return
        except OSError as e:
            problems.append(f"{host}:{port}: {e.strerror or e}")
    if problems:
        raise SetupError(
            f"Spark does not answer at {where} ({'; '.join(problems)})",
            "check the address, and that the server runs and is reachable from this machine",
        )


@dataclass(slots=True)
class _Prepared:
    """The user's settings, to restore when the last of `jobs` running jobs ends."""

    jobs: int
    before: dict[str, str | None]


_prepared: weakref.WeakKeyDictionary[Any, _Prepared] = weakref.WeakKeyDictionary()
_prepared_lock = threading.Lock()


@contextlib.contextmanager
def prepared(spark: SparkSession) -> Iterator[None]:
    """Set what arcbeam's jobs need; restore the user's settings when the last job on the session has ended."""
    with _prepared_lock:
        held = _prepared.get(spark)
        if held is None:
            held = _Prepared(0, {key: spark.conf.get(key, None) for key in _JOB_SETTINGS})
            for key, value in _JOB_SETTINGS.items():
                spark.conf.set(key, value)
            _prepared[spark] = held
        held.jobs += 1
    try:
        yield
    finally:
        with _prepared_lock:
            held.jobs -= 1
            if not held.jobs:
                _prepared.pop(spark, None)
                if driver.death(spark) is None:
                    _put_back(spark, held.before)


def _put_back(spark: SparkSession, before: dict[str, str | None]) -> None:
    for key, old in before.items():
        try:
            if old is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, old)
        except Exception as e:
            if remote.lost(spark, e) is not None:
                return  # each other setting would take as long


def replaced(spark: SparkSession) -> SparkSession:
    """Return a new session on the Connect server of a lost one, for its jobs; see `remote.renewed`."""
    new = remote.renewed(spark, _JOB_SETTINGS)
    if is_own(spark):
        note_own(new)
    return new


FAIR = "spark.scheduler.mode=FAIR"
"""The setting of a session on which jobs run concurrently."""

_POOL = "spark.scheduler.pool"
_GROUP, _DESCRIPTION = "spark.jobGroup.id", "spark.job.description"
_pools: dict[str, int] = {}
_pools_lock = threading.Lock()


@contextlib.contextmanager
def pooled(spark: SparkSession, job: str) -> Iterator[None]:
    """Give a job its own pool while it runs, if the session schedules fairly, so that each job has its share of slots.

    Pools stay in Spark permanently, so their names are reused.
    """
    if is_connect(spark) or spark.conf.get("spark.scheduler.mode", "FIFO") != "FAIR":
        yield
        return
    with _pools_lock:
        _pools[job] = next(number for number in itertools.count() if number not in _pools.values())
    try:
        yield
    finally:
        with _pools_lock:
            _pools.pop(job, None)


@contextlib.contextmanager
def tagged(
    spark: SparkSession, job: str, about: str = "", more: Mapping[str, str] = MappingProxyType({})
) -> Iterator[None]:
    """Mark the Spark jobs that this thread starts as `job`'s, for `interrupt` and for Spark's UI.

    In the UI they have the job as their group, and `about` as their description. A Connect server sets its own
    description, so `about` is another tag there. It has no local properties, and `more` are further ones.
    """
    tag, description = _tag(job), _tagged_text(about or job)
    before: dict[str, Any] = {}
    # SUBTLE: only the thread that set a classic session's own tags sees them; a context's tags are different.
    if is_connect(spark):
        spark.addTag(tag)
        spark.addTag(description)
    else:
        context = spark.sparkContext
        context.addJobTag(tag)
        properties = {_GROUP: job, _DESCRIPTION: about or job, **more}
        if (pool := _pools.get(job)) is not None:
            properties[_POOL] = f"arcbeam-{pool}"
        # For a bounded job this is the caller's own thread, which may have set properties before.
        before = {name: context.getLocalProperty(name) for name in properties}
        for name, value in properties.items():
            context.setLocalProperty(name, value)
    try:
        yield
    finally:
        with contextlib.suppress(Exception):  # the session may have ended
            if driver.death(spark) is not None:
                pass
            elif is_connect(spark):
                spark.removeTag(description)
                spark.removeTag(tag)
            else:
                for name, value in before.items():
                    spark.sparkContext.setLocalProperty(name, value)  # None removes it
                spark.sparkContext.removeJobTag(tag)


def interrupt(spark: SparkSession, job: str) -> None:
    """Cancel the running Spark jobs of a job; callable from any thread.

    Its tasks end within seconds, not immediately: Spark kills the worker of a cancelled task. A Connect server
    interrupts tasks regardless of the session's settings.
    """
    if is_connect(spark):
        spark.interruptTag(_tag(job))
    else:
        spark.sparkContext.cancelJobsWithTag(_tag(job))


def _tag(job: str) -> str:
    return f"arcbeam-{job}".replace(",", "_")


def _tagged_text(about: str) -> str:
    return about.replace(",", ";")


_parallelism: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def default_parallelism(spark: SparkSession) -> int:
    """Return how many tasks Spark runs concurrently by default; determined once per session."""
    known = _parallelism.get(spark)
    if known is None:
        local = _LOCAL.fullmatch(_master(spark))
        if local and local[1]:
            known = os.cpu_count() or 1 if local[1] == "*" else int(local[1])
        elif local:
            known = 1
        else:
            # SUBTLE: Spark rejects the partition's number inside an aggregate.
            numbered = spark.range(0, 1 << 16).select(F.spark_partition_id().alias("partition"))
            row = numbered.agg(F.max("partition")).first()
            known = int(row[0]) + 1 if row is not None else 1
        _parallelism[spark] = known
    return known


_MASTER = re.compile(r"local(-cluster)?\b|spark://|yarn$|k8s://")
_LOCAL = re.compile(r"local(?:\[(\d+|\*)(?:,\s*\d+)?\])?")


def _master(spark: SparkSession) -> str:
    return spark.conf.get("spark.master", "") or ""


def is_local(spark: SparkSession) -> bool:
    """Return whether the workers run on this machine, with its files."""
    if _LOCAL.fullmatch(_master(spark)) is None:
        return False
    return not is_connect(spark) or str(spark.client.host) in ("localhost", "127.0.0.1", "::1")
