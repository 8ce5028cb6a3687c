"""Checks of the settings and arguments that users pass to `ReadFromKafka` and `WriteToKafka`.

Owns what librdkafka does not know by the name that Java or Beam use, and what is intended. Must not know connections.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

_END: Final = "arcbeam.end.of.settings"
"""A setting that does not exist. librdkafka checks settings in order, so with this one it never creates a client."""

_JAVA: Final = {
    "key.deserializer": "pass a function as key_deserializer",
    "value.deserializer": "pass a function as value_deserializer",
    "key.serializer": "pass a function as key_serializer",
    "value.serializer": "pass a function as value_serializer",
    "fetch.max.wait.ms": "librdkafka's name is 'fetch.wait.max.ms'",
    "max.request.size": "librdkafka's name is 'message.max.bytes'",
    "buffer.memory": "librdkafka has 'queue.buffering.max.kbytes'",
    "receive.buffer.bytes": "librdkafka's name is 'socket.receive.buffer.bytes'",
    "send.buffer.bytes": "librdkafka's name is 'socket.send.buffer.bytes'",
    "default.api.timeout.ms": "librdkafka has 'socket.timeout.ms'",
    "max.block.ms": "librdkafka has 'message.timeout.ms'",
    "interceptor.classes": "there are no Java classes here",
    "metric.reporters": "there are no Java classes here",
    "sasl.jaas.config": "librdkafka has 'sasl.username' and 'sasl.password'",
    "ssl.truststore.password": "librdkafka has 'ssl.ca.location', a file of certificates (PEM) without a password",
    "sasl.login.callback.handler.class": "there are no Java classes here",
    "sasl.client.callback.handler.class": "there are no Java classes here",
}
"""Settings of Java's clients that librdkafka does not have."""

_COMMON: Final = """
bootstrap.servers client.id client.rack client.dns.lookup group.id security.protocol sasl.mechanism
sasl.mechanisms sasl.username sasl.password sasl.kerberos.service.name sasl.kerberos.principal
sasl.kerberos.keytab sasl.oauthbearer.config sasl.oauthbearer.method sasl.oauthbearer.client.id
sasl.oauthbearer.client.secret sasl.oauthbearer.scope sasl.oauthbearer.token.endpoint.url ssl.ca.location
ssl.ca.pem ssl.certificate.location ssl.certificate.pem ssl.key.location ssl.key.pem ssl.key.password
ssl.keystore.location ssl.keystore.password ssl.cipher.suites ssl.endpoint.identification.algorithm
enable.ssl.certificate.verification socket.timeout.ms socket.keepalive.enable socket.send.buffer.bytes
socket.receive.buffer.bytes socket.connection.setup.timeout.ms connections.max.idle.ms reconnect.backoff.ms
reconnect.backoff.max.ms retry.backoff.ms retry.backoff.max.ms broker.address.family metadata.max.age.ms
topic.metadata.refresh.interval.ms allow.auto.create.topics api.version.request message.max.bytes
receive.message.max.bytes statistics.interval.ms fetch.min.bytes fetch.max.bytes fetch.wait.max.ms
fetch.message.max.bytes max.partition.fetch.bytes fetch.error.backoff.ms queued.min.messages
queued.max.messages.kbytes check.crcs session.timeout.ms heartbeat.interval.ms max.poll.interval.ms
partition.assignment.strategy auto.offset.reset isolation.level acks request.required.acks linger.ms batch.size
batch.num.messages compression.type compression.codec compression.level delivery.timeout.ms message.timeout.ms
message.send.max.retries retries request.timeout.ms max.in.flight.requests.per.connection
queue.buffering.max.messages queue.buffering.max.kbytes partitioner sticky.partitioning.linger.ms
transaction.timeout.ms transactional.id enable.idempotence
"""
"""The settings that are used most, to find the one that is intended."""

_READ: Final = {
    "start_read_time": "use start: a datetime, a Timestamp, or seconds since 1970 (not milliseconds)",
    "max_num_records": "use stop: 'latest', a time, or offsets",
    "max_read_time": "use stop: 'latest', a time, or offsets",
    "consumer_polling_timeout": "it is not needed",
    "redistribute": "apply beam.Reshuffle() to the output",
    "redistribute_num_keys": "apply beam.Reshuffle() to the output",
    "allow_duplicates": "there are none",
    "dynamic_read_poll_interval_seconds": "use discovery_seconds",
    "consumer_factory_fn_class": "use credentials: a function that returns settings",
    "consumer_factory_fn_params": "use credentials: a function that returns settings",
    "expansion_service": "there is no Java here, so none is needed",
}
_WRITE: Final = {
    "with_headers": "elements that are ProducerRecords have headers, topic, partition and time",
    "expansion_service": "there is no Java here, so none is needed",
}
BEAMS: Final = {"ReadFromKafka": _READ, "WriteToKafka": _WRITE}
"""Arguments of Beam's transforms that ours do not have."""


def check_settings(of: str, client: str, settings: Mapping[str, Any], credentials: Any) -> None:
    """Check names and values of settings as librdkafka does, without a connection.

    Args:
        of: the transform, and the name of the argument with the settings.
        client: the name of its class in `confluent_kafka`.
        settings: those without secrets.
        credentials: the others, if they are given by name.

    Raises:
        ValueError: there is no such setting, or its value is invalid.
    """
    _check(of, client, settings)
    for name in credentials if isinstance(credentials, Mapping) else ():
        # Its value is unknown here.
        _check(f"{of}, credentials", client, {"group.id": "g", name: "x"}, names_only=True)


def _check(of: str, client: str, settings: Mapping[str, Any], *, names_only: bool = False) -> None:
    import confluent_kafka

    reason = ""
    try:
        getattr(confluent_kafka, client)({**settings, _END: "x"})
    except confluent_kafka.KafkaException as e:
        reason = str(e.args[0].str()).strip()
    unknown = re.match(r'No such configuration property: "(.*)"', reason)
    if unknown is None:
        if names_only:
            return
        raise ValueError(f"{of}: {reason}")
    if (name := unknown.group(1)) == _END:
        return
    if (hint := _JAVA.get(name)) is None:
        close = difflib.get_close_matches(name, _COMMON.split(), 1, 0.7)
        hint = f"did you mean {close[0]!r}?" if close else "names are those of librdkafka, not of Java's clients"
    raise ValueError(f"{of}: there is no setting {name!r}: {hint}")


def check_java(of: str, name: str) -> None:
    """Refuse a setting of Java's clients.

    Args:
        of: the transform, and the name of the argument with the setting.
        name: of the setting.

    Raises:
        ValueError: librdkafka does not have it. The error says what to use instead.
    """
    if (hint := _JAVA.get(name)) is not None:
        raise ValueError(f"{of}: there is no setting {name!r}: {hint}")


def check_arguments(of: str, others: Mapping[str, Any], known: Iterable[str]) -> None:
    """Refuse arguments that a transform does not have.

    Args:
        of: the transform.
        others: the arguments.
        known: the names that it has.

    Raises:
        TypeError: there is one. The error says what to use instead.
    """
    for name in others:
        if (hint := BEAMS[of].get(name)) is None:
            close = difflib.get_close_matches(name, list(known), 1, 0.7)
            hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(known)}"
        raise TypeError(f"{of} has no argument {name!r}: {hint}")


def check_function(of: str, name: str, function: Any, what: str) -> None:
    """Check a deserializer or serializer.

    Args:
        of: the transform.
        name: of the argument.
        function: its value.
        what: what it must be.

    Raises:
        TypeError: it is not callable.
    """
    if function is None or callable(function):
        return
    java = isinstance(function, str) and "." in function
    example = "bytes.decode" if name.endswith("deserializer") else "str.encode"
    hint = f". This is a Java class: give none for bytes, or a Python function such as {example}" if java else ""
    raise TypeError(f"{of}({name}={function!r}): expected {what}{hint}")


def check_flags(of: str, **flags: Any) -> None:
    """Check arguments that are True or False.

    Args:
        of: the transform.
        flags: their values, by name.

    Raises:
        TypeError: one is neither. A text such as "no" would count as True.
    """
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise TypeError(f"{of}({name}={value!r}): expected True or False")
