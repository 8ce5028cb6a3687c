"""How clients connect: configuration of librdkafka, and credentials that no file of a job contains.

Owns the checks of a configuration, and when credentials are read: in each process that connects, never before. Must not
know what a client is for.
"""

from __future__ import annotations

import base64
import importlib.util
import os
import pickletools
import re
import socket
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from arcbeam.errors import SetupError
from arcbeam.io.kafka.settings import check_java
from arcbeam.model.urns import SECRETS_ANNOTATION
from arcbeam.secrets import declare, declared, is_secret, without_credentials

Credentials = Callable[[], Mapping[str, Any]] | Mapping[str, str] | None
"""Returns settings; or the names of environment variables by setting."""

_SECRET: Final = ("jaas", ".pem", "basic.auth", "sasl.oauthbearer.config")
"""Parts of names of secret settings, besides those that are secret everywhere."""
_VARIABLE: Final = re.compile("[A-Z_][A-Z0-9_]*")
"""Names of environment variables. Other texts may be passwords, so no message contains them."""
_LONG: Final = 12
"""Characters of a secret that is not part of other texts by chance."""
_NEVER: Final = ("debug",)
"""Settings that make librdkafka log what may be secret."""
_FILE: Final = ".location"
"""The end of names of settings that are paths."""


def check_installed(of: str) -> None:
    """Raise an error if the package of the clients is missing.

    Args:
        of: the transform that needs it.

    Raises:
        ImportError: it is missing.
    """
    if importlib.util.find_spec("confluent_kafka") is None:
        raise ImportError(f"{of} requires confluent-kafka: pip install 'arcbeam[kafka]'")


def naming_secrets() -> dict[str, bytes]:
    """Return the annotation of a transform by which a job server knows which environment variables are secret."""
    names = declared()
    return {SECRETS_ANNOTATION: ",".join(names).encode()} if names else {}


@dataclass(frozen=True)
class ClientConnection:
    """What a client needs to connect.

    Attributes:
        config: settings of librdkafka, without secrets.
        credentials: the others.
    """

    config: Mapping[str, Any]
    credentials: Credentials = field(default=None, repr=False)

    @staticmethod
    def checked(
        of: str,
        config: Mapping[str, Any],
        credentials: Credentials,
        owned: Mapping[str, str],
        required: str = "bootstrap.servers",
    ) -> ClientConnection:
        """Check what a user passes.

        Args:
            of: the transform, and the name of the argument with the settings.
            config: the settings.
            credentials: see `Credentials`.
            owned: settings that the transform makes itself, each with what to use instead.
            required: the setting that must be given.

        Raises:
            TypeError: a value has the wrong type.
            ValueError: a setting is a secret, is missing, or is the transform's own; or credentials contain secrets.
        """
        if not isinstance(config, Mapping):
            raise TypeError(f"{of}: expected settings of librdkafka by name, not {type(config).__name__}")
        for name, value in config.items():
            if not isinstance(value, str | int | float | bool):
                raise TypeError(f"{of}: the setting {name!r} is a {type(value).__name__}; functions go to credentials")
            if name in owned:
                raise ValueError(f"{of}: the setting {name!r} cannot be given: {owned[name]}")
            if name in _NEVER:
                raise ValueError(f"{of}: the setting {name!r} cannot be given: it would log credentials")
            # First: who moves it to the credentials would then read that it does not exist.
            check_java(of, name)
            if _is_secret(name) or _has_credentials(value):
                raise ValueError(
                    f"{of}: the setting {name!r} is a secret, which would be stored with the pipeline. Pass it as "
                    f"credentials={{{name!r}: 'NAME_OF_AN_ENVIRONMENT_VARIABLE'}}, or as a function that returns it"
                )
        if isinstance(credentials, Mapping):
            if bad := [name for name, value in credentials.items() if not _VARIABLE.fullmatch(str(value))]:
                raise ValueError(
                    f"{of}: credentials[{bad[0]!r}]: expected the name of an environment variable, of capital letters, "
                    "digits and underscores. The value itself would be stored with the pipeline"
                )
            declare(credentials.values())
        elif credentials is not None and not callable(credentials):
            raise TypeError(f"{of}: credentials must be a function, or names of environment variables by setting")
        elif credentials is not None:
            _check_contents(of, credentials)
        if required not in config and credentials is None:
            raise ValueError(f"{of}: the setting {required!r} is missing")
        return ClientConnection(dict(config), credentials)

    def settings(self, more: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
        """Return all settings for a client in this process.

        Args:
            more: settings that are added, callbacks too.

        Raises:
            SetupError: an environment variable is missing, or the function of credentials fails.
        """
        given: Mapping[str, Any] = {}
        if isinstance(self.credentials, Mapping):
            missing = sorted(name for name in self.credentials.values() if name not in os.environ)
            if missing:
                raise SetupError(
                    f"cannot connect to Kafka: the environment variable {missing[0]} is not set",
                    "set it in the environment of Spark's executors (spark.executorEnv.NAME), or in that of the driver "
                    "if the session is local",
                )
            given = {name: os.environ[value] for name, value in self.credentials.items()}
        elif self.credentials is not None:
            given = _called(self.credentials)
        # Errors go to a callback. What librdkafka writes to standard error repeats them.
        quiet = {"log_level": 2}
        return {**quiet, **self.config, **given, **more}

    def made(self, make: Callable[[dict[str, Any]], Any], more: Mapping[str, Any] = MappingProxyType({})) -> Any:
        """Create a client.

        Args:
            make: its class.
            more: see `settings`.

        Raises:
            SetupError: a setting is invalid, or an environment variable is missing.
        """
        settings = self.settings(more)
        try:
            return make(settings)
        except Exception as e:
            # Errors of librdkafka contain invalid values.
            given = {name: value for name, value in settings.items() if name not in more}
            reason = self._without(_text(e), given)
            files = [name for name in self.config if name.endswith(_FILE) and name in reason]
            if absent := [name for name in files if not Path(given[name]).exists()]:
                raise SetupError(
                    f"cannot create a Kafka client: the file {given[absent[0]]} of {absent[0]!r} does not exist on the "
                    f"host {socket.gethostname()} ({reason})",
                    "put the file there on all hosts that run tasks, or correct the setting",
                ) from None
            raise SetupError(f"cannot create a Kafka client: {reason}", "correct the settings") from None

    def hidden(self, text: str) -> str:
        """Return a text without the values of credentials."""
        return self._without(text, self.settings()) if self.credentials is not None else text

    def _without(self, text: str, settings: Mapping[str, Any]) -> str:
        for name, value in settings.items():
            if name not in self.config and isinstance(value, str) and value:
                text = text.replace(value, "…")
        return text


def _text(error: Exception) -> str:
    """Return what an error says: librdkafka's, without its code."""
    inner = error.args[0] if error.args else error
    return str(inner.str() if hasattr(inner, "str") else inner)


def _called(credentials: Callable[[], Any]) -> Mapping[str, Any]:
    """Return what a function of credentials returns.

    Raises:
        SetupError: it fails. The text of its exception is left out: it may contain a secret.
    """
    try:
        given = credentials()
    except Exception as e:
        raised = f"raised {type(e).__name__}; its text is not shown, because it may contain a secret"
    else:
        if isinstance(given, Mapping):
            return given
        raised = f"returned {type(given).__name__}, not settings by name"
    raise SetupError(f"cannot connect to Kafka: the function of credentials {raised}", "correct the function")


def _check_contents(of: str, credentials: Callable[[], Any]) -> None:
    """Refuse a function of credentials that contains them.

    Args:
        of: the transform, and the name of the argument with the settings.
        credentials: the function. It may fail here, for example if only executors have the secrets.

    Raises:
        ValueError: its pickled form, which is stored with the pipeline, has a secret that it returns.
    """
    from apache_beam.internal import pickler

    try:
        given = _called(credentials)
        data = zlib.decompress(base64.b64decode(pickler.dumps(credentials, use_zlib=True)))
    except Exception:
        return  # What cannot be pickled is refused where the pipeline is.
    constants = [constant for _, constant, _ in pickletools.genops(data)]
    texts = {text for text in constants if isinstance(text, str)}
    # A function may decode it. Any bytes are a text in Latin-1.
    texts |= {bytes(text).decode("latin-1") for text in constants if isinstance(text, bytes | bytearray)}
    for name, value in given.items():
        if not (isinstance(value, str) and value and _is_secret(name)):
            continue
        # A short one may also be part of a file's name.
        forms = {value, value.encode().decode("latin-1")}
        if forms & texts or (len(value) >= _LONG and any(form in text for form in forms for text in texts)):
            raise ValueError(
                f"{of}: the function of credentials contains the value of {name!r}, as a constant or from a variable "
                "outside of it, so it would be stored with the pipeline. Read the value within the function, from a "
                "file or os.environ"
            )


def _is_secret(name: str) -> bool:
    return is_secret(name) or any(part in name for part in _SECRET)


def _has_credentials(value: Any) -> bool:
    return isinstance(value, str) and without_credentials(value) != value
