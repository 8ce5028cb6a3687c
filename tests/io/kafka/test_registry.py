"""Values with schemas of a registry: a small one, over HTTP."""

from __future__ import annotations

import base64
import io
import json
import pickle
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import fastavro
import pytest
from google.protobuf import descriptor_pb2, message_factory

from arcbeam.io.kafka import FromRegistry
from arcbeam.io.kafka.partitions import Partition
from tests.io.kafka.fakes import Log, Message, read
from tests.io.kafka.test_reading import reader

pytestmark = pytest.mark.contract("KAFKA-04")

_AVRO = {"type": "record", "name": "Click", "fields": [{"name": "n", "type": "long"}]}
_JSON = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
_FILE = descriptor_pb2.FileDescriptorProto(name="click.proto", package="clicks", syntax="proto3")
_FILE.message_type.add(name="Click").field.add(name="n", number=1, type=3, label=1)
_PROTO = base64.b64encode(_FILE.SerializeToString()).decode()
SCHEMAS = {
    1: {"schema": json.dumps(_AVRO)},
    2: {"schema": json.dumps(_JSON), "schemaType": "JSON"},
    3: {"schema": _PROTO, "schemaType": "PROTOBUF"},
}


class Registry(BaseHTTPRequestHandler):
    """Answers requests for schemas. `broken`: it fails; `requested`: the authorization of the requests."""

    broken = False
    requested: list[str]

    def do_GET(self) -> None:
        type(self).requested.append(self.headers.get("Authorization", ""))
        id = int(self.path.partition("?")[0].rpartition("/")[2])
        status, answer = 200, SCHEMAS.get(id, {})
        if not answer:
            status, answer = 404, {"error_code": "40403", "message": "Schema not found"}
        if self.broken:
            status, answer = 503, {"error_code": "50301", "message": "s3cret is down"}
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing."""


@pytest.fixture
def registry() -> Iterator[str]:
    pytest.importorskip("confluent_kafka.schema_registry", reason="pip install 'arcbeam[kafka-registry]'")
    Registry.broken, Registry.requested = False, []
    with ThreadingHTTPServer(("127.0.0.1", 0), Registry) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def framed(id: int, data: bytes, indexes: bytes = b"") -> bytes:
    """Return a value as the registry's serializers write it."""
    return b"\0" + id.to_bytes(4, "big") + indexes + data


def avro(n: int) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(_AVRO), {"n": n})
    return out.getvalue()


def test_formats_are_decoded(registry: str) -> None:
    config = {"url": registry}
    assert FromRegistry("avro", config)(framed(1, avro(7))) == {"n": 7}
    assert FromRegistry("json", config)(framed(2, b'{"n": 8}')) == {"n": 8}
    click = message_factory.GetMessages([_FILE])["clicks.Click"]
    message = click(n=9)
    decode = FromRegistry("protobuf", config, message=click)
    assert decode(framed(3, message.SerializeToString(), b"\0")) == message
    assert decode(None) is None


def test_undecodable_values_have_their_own_output(registry: str) -> None:
    of = [framed(1, avro(1)), b"not framed", framed(99, b"x"), framed(1, b""), framed(1, avro(2))]
    log = Log([Message(n, 1_000, data=data) for n, data in enumerate(of)], len(of))
    decoder = pickle.loads(pickle.dumps(FromRegistry("avro", {"url": registry})))
    processed, _ = read(reader(log, value=decoder, errors=True), Partition("t", "id", 0))
    assert [output.value[1] for output in processed.outputs] == [{"n": 1}, {"n": 2}]
    assert [each.value.record.offset for each in processed.errors] == [1, 2, 3]


def test_json_that_breaks_its_schema_is_refused(registry: str) -> None:
    with pytest.raises(Exception, match="n"):
        FromRegistry("json", {"url": registry})(framed(2, b'{"m": 8}'))


def test_registry_that_fails_is_not_the_records_fault(registry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGISTRY", "me:s3cret")
    config = {"url": registry, "max.retries": 0}
    decoder = FromRegistry("avro", config, credentials={"basic.auth.user.info": "REGISTRY"})
    assert b"s3cret" not in pickle.dumps(decoder)
    log = Log([Message(0, 1_000, data=framed(1, avro(1)))], 1)
    Registry.broken = True
    with pytest.raises(ConnectionError, match="the schema registry http") as error:
        read(reader(log, value=decoder, errors=True), Partition("t", "id", 0))
    assert "me:s3cret" not in str(error.value)
    Registry.broken = False
    processed, _ = read(reader(log, value=decoder, errors=True), Partition("t", "id", 0))
    assert [output.value[1] for output in processed.outputs] == [{"n": 1}]
    assert set(Registry.requested) == {"Basic " + base64.b64encode(b"me:s3cret").decode()}


def test_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match="expected one of"):
        FromRegistry("xml", {"url": "http://x"})
    with pytest.raises(ValueError, match="message"):
        FromRegistry("protobuf", {"url": "http://x"})
    with pytest.raises(ValueError, match="SchemaRegistryClient has no setting foo: correct or remove it"):
        FromRegistry("json", {"url": "http://x", "foo": 1})
    with pytest.raises(ValueError, match="'url' is missing"):
        FromRegistry("avro", {})
    with pytest.raises(ValueError, match="is a secret"):
        FromRegistry("avro", {"url": "http://x", "basic.auth.user.info": "me:secret"})


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name="authlib")

    monkeypatch.setattr("importlib.import_module", missing)
    with pytest.raises(ImportError, match=r"requires the package authlib: pip install 'arcbeam\[kafka-registry\]'"):
        FromRegistry("avro", {"url": "http://x"})
