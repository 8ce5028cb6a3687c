"""Trouble with brokers, reported once on a host, and once when it is over.

Owns what begins and ends it, and the file by which the processes of a job know of it. librdkafka retries by itself, and
so do the callers of this module. Must not know what is read or written.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from arcbeam.io.kafka.connection import ClientConnection
from arcbeam.model.attempts import process_state

_LOG = logging.getLogger("arcbeam.kafka")

_QUIET_SECONDS: Final = 10.0
"""Without a failure, until trouble is over: of several partitions and tasks, some succeed while others fail."""
_FORGOTTEN_SECONDS: Final = 300.0
"""Without a failure, until trouble is forgotten: no process has seen its end."""
_LOOK_SECONDS: Final = 5.0
"""Between two looks for trouble that another process has reported."""
_LISTEN: Final = 15
"""How often a client listens, for a tenth of a second each."""
_REASONS: Final = 3
"""Texts that are reported."""
_REFUSED: Final = "SASL authentication error"
_HOPELESS: Final = re.compile(
    f"Failed to resolve|{_REFUSED}|SASL .* mechanism handshake failed|certificate verify failed"
)
_NO_TLS: Final = r": SSL handshake failed: \1: connecting to a PLAINTEXT broker listener?"
_CLOSED: Final = "brokers are down"
"""What librdkafka says if brokers end connections without an answer. It names none of them."""


class AddressError(ConnectionError):
    """No broker answers, and retrying does not help: brokers have unknown names or certificates, or refuse the
    credentials.
    """


def unreachable(servers: str, error: object, seconds: float) -> str:
    """Return the text of the error after which a client gives up.

    Args:
        servers: the addresses of the cluster.
        error: why no broker answers.
        seconds: for how long.
    """
    return (
        f"no broker of {servers} has answered for {seconds:.0f} s: {error}. Check bootstrap.servers, "
        "security.protocol, ssl.ca.location and the credentials, that the brokers run, and that this host reaches them"
    )


class ClientTrouble:
    """The trouble of a client, which is reported for all clients of its job and cluster on this host.

    Args:
        servers: the addresses of the cluster, for messages.
        clock: returns seconds since 1970.
        job: the name of the job, if the process does not know it.
        user: who connects, for messages about refused passwords; "" if that is unknown or secret.
        protocol: the setting "security.protocol".

    Attributes:
        servers: likewise.
        failures: how many requests have failed since the last success.
    """

    def __init__(
        self,
        servers: str,
        clock: Callable[[], float] = time.time,
        job: str = "",
        user: str = "",
        protocol: str = "plaintext",
    ) -> None:
        self.servers, self._clock, self._job, self._user, self._protocol = servers, clock, job, user, protocol
        self.failures = 0
        self._heard: dict[str, str] = {}
        self._is_open = False
        self._looked = 0.0
        self._own: dict[str, Any] = {}

    @property
    def now(self) -> bool:
        """Whether the client has had an error since its last success."""
        return self.failures > 0 or bool(self._heard)

    def hear(self, error: Any) -> None:
        """Note an error of a connection. It may be harmless: the client tries other addresses and brokers."""
        text = error_text(error)
        broker, colon, _ = text.partition(": ")
        # "2/2 brokers are down" names none.
        name = broker if colon else ""
        self._heard.pop(name, None)
        self._heard[name] = text

    def listen(self, poll: Callable[[float], Any]) -> None:
        """Wait a moment for errors of connections, which name brokers; but not while requests fail repeatedly.

        Args:
            poll: calls `hear`. Its argument is how long it waits, in seconds.
        """
        poll(0)
        for _ in range(_LISTEN):
            if self.failures or any(self._heard):
                return
            poll(0.1)

    def reason(self, error: Any) -> str:
        """Return why a request has failed: the errors of connections, which name brokers, or else the error itself."""
        named = [text for broker, text in self._heard.items() if broker]
        if not named and _CLOSED in self._heard.get("", ""):
            return (
                f"{error_text(error)}. Perhaps brokers end the connections, because they expect another "
                f"security.protocol there: the client's is {self._protocol}"
            )
        return "; ".join(map(self._as_user, (named or [error_text(error)])[-_REASONS:]))

    def _as_user(self, text: str) -> str:
        return f"{text} (user {self._user!r})" if self._user and _REFUSED in text else text

    def error(self, error: Any) -> ConnectionError:
        """Return the exception for a request that has failed, with the reason as its text."""
        named = [text for broker, text in self._heard.items() if broker]
        is_wrong = len(named) >= len(self.servers.split(",")) and all(map(_HOPELESS.search, named))
        return (AddressError if is_wrong else ConnectionError)(self.reason(error))

    def failed(self, of: str, error: Any, began: float) -> None:
        """Note that a request has failed; report it, unless trouble with this cluster was reported.

        Args:
            of: what was requested.
            error: of librdkafka, or an exception with one.
            began: when it was requested, in seconds since 1970.
        """
        self.failures += 1
        self._is_open = True
        now = self._clock()
        with self._state() as state:
            if not state or now - state["failed"] > _FORGOTTEN_SECONDS:
                state["since"] = began
                _LOG.warning(
                    "Kafka, %s: %s failed: %s. It is retried. What else fails is not reported until this is over",
                    self.servers,
                    of,
                    self.reason(error),
                )
            state["failed"], state["answered"] = now, None

    def succeeded(self) -> None:
        """Note that a request has succeeded; report it, if that ends the trouble."""
        if self.failures or self._heard:
            self.failures = 0
            self._heard.clear()
        now = self._clock()
        if 0 <= now - self._looked < (_LOOK_SECONDS if not self._is_open else min(1.0, _QUIET_SECONDS)):
            return
        self._looked = now
        if not self._is_open and not self._path().exists():
            return
        with self._state() as state:
            self._is_open = bool(state)
            if not state:
                return
            if state["answered"] is None:
                state["answered"] = now
            if now - state["failed"] < _QUIET_SECONDS:
                return
            if now - state["failed"] <= _FORGOTTEN_SECONDS:
                seconds = max(0.0, state["answered"] - state["since"])
                _LOG.warning("Kafka, %s: all requests succeed again, after %.0f s", self.servers, seconds)
            state.clear()
            self._is_open = False

    def _path(self) -> Path:
        job = self._job if process_state.attempt is None else process_state.attempt.job
        name = hashlib.sha256(f"{job or os.getpid()}/{self.servers}".encode()).hexdigest()[:16]
        return Path(tempfile.gettempdir(), f"arcbeam-{os.getuid()}", f"kafka-{name}")

    @contextlib.contextmanager
    def _state(self) -> Iterator[dict[str, Any]]:
        """Yield the state that the job's processes share, to be changed; empty if there is no trouble."""
        path = self._path()
        try:
            file = _locked(path)
        except OSError:
            # Without a place for files, each client reports for itself.
            yield self._own
            return
        try:
            state = {} if not (data := os.read(file, 10_000)) else json.loads(data)
            yield state
            if state:
                os.ftruncate(file, 0)
                os.pwrite(file, json.dumps(state).encode(), 0)
            else:
                path.unlink()
        finally:
            os.close(file)


def _locked(path: Path) -> int:
    """Return the descriptor of a file of this user that no other process has locked; create it if needed.

    Raises:
        OSError: it cannot be created, or is another user's.
    """
    with contextlib.suppress(FileExistsError):
        path.parent.mkdir(mode=0o700)
    if path.parent.lstat().st_uid != os.geteuid():
        raise PermissionError(str(path.parent))
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        fcntl.flock(file, fcntl.LOCK_EX)
        # Another process may have removed it meanwhile.
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_ino == os.fstat(file).st_ino:
                return file
        os.close(file)


def trouble_of(connection: ClientConnection, job: str = "") -> ClientTrouble:
    """Return what reports the trouble of a new client.

    Args:
        connection: how it connects.
        job: the name of the job, where no task of it runs.
    """
    config = connection.config
    user = str(config.get("sasl.username", config.get("sasl.user.name", "")))
    protocol = str(config.get("security.protocol", "plaintext"))
    return ClientTrouble(str(config.get("bootstrap.servers", "brokers")), job=job, user=user, protocol=protocol)


def error_text(error: Any) -> str:
    """Return the text of an error of librdkafka, or of an exception with one, without what differs in each try."""
    inner = error.args[0] if isinstance(error, Exception) and error.args else error
    text = inner.str() if hasattr(inner, "str") else str(inner)
    # librdkafka says the same as "SSL handshake failed: …", or only this, by chance.
    text = re.sub(r"(?<!failed): (Disconnected.*)(?= \(after \d+ms in state SSL_HANDSHAKE)", _NO_TLS, text)
    text = re.sub(r" \(after \d+ms in state .*\)", "", text)
    return text.replace("/bootstrap: ", ": ")
