"""Values whose schemas are in a schema registry: JSON, Avro and Protobuf.

Owns how a registry's deserializers are made in the processes that read, and which of their errors are not a record's
fault. Must not know what a record is for.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Mapping
from typing import Any, Final

from arcbeam.io.kafka.connection import ClientConnection, Credentials, check_installed

FORMATS: Final = ("json", "avro", "protobuf")
_MISSING: Final = 404
_UNKNOWN: Final = "Unrecognized properties: "
"""How the client's error begins if settings do not exist."""
_CLIENTS: Final = ("httpx", "httpx2", "httpcore", "authlib")
"""Packages whose errors are about the connection to the registry."""


class FromRegistry:
    """A deserializer of values that producers wrote with a schema registry (Confluent's format).

    `ReadFromKafka(…, value_deserializer=FromRegistry("avro", {"url": "http://registry:8081"}))`. The values are
    dictionaries for JSON and Avro, and messages for Protobuf. A value that has no such schema cannot be decoded. While
    the registry does not answer, the job repeats its micro-batch.

    Args:
        format: "json", "avro" or "protobuf".
        config: settings of confluent_kafka's `SchemaRegistryClient` without secrets, at least "url".
        message: for Protobuf: the generated class of the messages.
        credentials: see `ReadFromKafka`; for example {"basic.auth.user.info": "REGISTRY_USER_AND_PASSWORD"}.

    Raises:
        ImportError: a package is missing.
        TypeError: an argument has the wrong type.
        ValueError: an argument is invalid, or `config` has a secret.
    """

    def __init__(
        self, format: str, config: Mapping[str, Any], *, message: Any = None, credentials: Credentials = None
    ) -> None:
        check_installed("FromRegistry")
        if format not in FORMATS:
            raise ValueError(f"FromRegistry(format={format!r}): expected one of {FORMATS}")
        if (message is not None) != (format == "protobuf"):
            raise ValueError("FromRegistry(message=…) is the class of Protobuf's messages: give both, or neither")
        self._format, self._message = format, message
        self._connection = ClientConnection.checked("FromRegistry(config)", config, credentials, {}, required="url")
        self._decode: Any = None
        self._module()
        _check_names(config)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_decode": None}

    def set_up(self) -> None:
        """Create the client of the registry, in a process that reads."""
        from confluent_kafka.schema_registry import SchemaRegistryClient

        def client(settings: dict[str, Any]) -> Any:
            return SchemaRegistryClient({name: value for name, value in settings.items() if name != "log_level"})

        made, module = self._connection.made(client), self._module()
        # A reader needs the id of the schema only, which is in the value.
        given: dict[str, Any] = {"subject.name.strategy": lambda context, record: None}
        match self._format:
            case "json":
                self._decode = module.JSONDeserializer(None, schema_registry_client=made, conf=given)
            case "avro":
                self._decode = module.AvroDeserializer(made, conf=given)
            case _:
                given["use.deprecated.format"] = False
                self._decode = module.ProtobufDeserializer(self._message, given, made)

    def __call__(self, data: bytes | None) -> Any:
        """Return the value of bytes; None if there are none.

        Raises:
            ConnectionError: the registry does not answer, or refuses to.
            Exception: the bytes cannot be decoded.
        """
        if data is None:
            return None
        if self._decode is None:
            self.set_up()
        try:
            return self._decode(data)
        except Exception as e:
            if _is_of_registry(e):
                reason = self._connection.hidden(f"{type(e).__name__}: {e}")
                raise ConnectionError(f"the schema registry {self._connection.config.get('url')}: {reason}") from None
            raise

    def _module(self) -> Any:
        name = "json_schema" if self._format == "json" else self._format
        try:
            return importlib.import_module(f"confluent_kafka.schema_registry.{name}")
        except ImportError as e:
            raise ImportError(
                f"FromRegistry({self._format!r}) requires the package {e.name}: pip install 'arcbeam[kafka-registry]'"
            ) from e


def _check_names(config: Mapping[str, Any]) -> None:
    """Refuse settings that the client of the registry does not have. It does not connect here."""
    from confluent_kafka.schema_registry import SchemaRegistryClient

    reason = ""
    with contextlib.suppress(Exception):  # such as files that only executors have
        try:
            SchemaRegistryClient(dict(config))
        except ValueError as e:
            reason = str(e)
    if reason.startswith(_UNKNOWN):
        names = reason.removeprefix(_UNKNOWN)
        raise ValueError(f"FromRegistry(config): SchemaRegistryClient has no setting {names}: correct or remove it")


def _is_of_registry(error: BaseException) -> bool:
    """Return whether an error is not about the record: the registry fails, or refuses the credentials."""
    from confluent_kafka.schema_registry.error import SchemaRegistryError

    if isinstance(error, SchemaRegistryError):
        return bool(error.http_status_code != _MISSING)
    return isinstance(error, OSError) or type(error).__module__.partition(".")[0] in _CLIENTS
