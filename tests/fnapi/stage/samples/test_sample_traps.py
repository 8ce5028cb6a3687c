"""Outputs that a worker sends only for samples: a scripted worker cuts, ends and spoils them."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import apache_beam as beam
import pytest
from apache_beam import coders
from apache_beam.coders.coders import GlobalWindowCoder
from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_fn_api_pb2 as fn_pb
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.windowed_value import WindowedValue

from arcbeam.fnapi.descriptors import sampled_sink_of
from arcbeam.fnapi.lost import SdkWorkerLostError
from arcbeam.fnapi.stage.collectionsamples import SampledCollection
from arcbeam.model.plan import RemotePort, Stage
from arcbeam.translate import ParsedPipeline, translate
from arcbeam.translate.proto import pipeline_proto
from tests.fnapi.scripted import ScriptedWorker
from tests.fnapi.stage.inworkers import external
from tests.fnapi.stage.traps.test_bundle_traps import SINK, element, run, worker

pytestmark = pytest.mark.contract("PAGE-15")

__all__ = ["worker"]  # a fixture


@pytest.fixture(scope="module")
def of() -> Stage:
    p = beam.Pipeline()
    first = p | beam.Impulse() | "First" >> beam.Map(lambda x: x).with_output_types(bytes)
    _ = first | "Second" >> beam.Map(lambda x: x).with_output_types(bytes) | beam.Reshuffle() | beam.Map(print)
    proto = pipeline_proto(p)
    for environment in proto.components.environments.values():
        environment.CopyFrom(external("localhost:1"))
    return next(stage for stage in translate(ParsedPipeline(proto), bounded=False).stages if stage.source is None)


def inner_of(of: Stage) -> str:
    """Return the sink of what the first transform puts out, which only the second one reads."""
    assert of.remote is not None
    (port,) = of.remote.inner
    return sampled_sink_of(port.pcoll)


def test_descriptor_with_all_collections_is_only_for_samples(of: Stage, worker: list[ScriptedWorker]) -> None:
    seen: list[set[str]] = []

    def script(worker: ScriptedWorker, id: str) -> None:
        requested = worker.last_request.process_bundle.process_bundle_descriptor_id
        seen.append(set(worker.descriptor(requested).transforms))
        for sink in {SINK, inner_of(of)} & seen[-1]:
            worker.put_out(id, sink, b"", last=True)
        worker.respond(id, process_bundle=fn_pb.ProcessBundleResponse())

    run(of, worker, script)
    worker.clear()
    run(of, worker, script, sampled=True)
    without, with_samples = seen
    assert with_samples - without == {inner_of(of)}


def test_samples_may_be_cut_anywhere(of: Stage, worker: list[ScriptedWorker]) -> None:
    data = b"".join(element(b"%d" % n) for n in range(9))

    def script(worker: ScriptedWorker, id: str) -> None:
        for n in range(len(data)):
            worker.put_out(id, inner_of(of), data[n : n + 1], last=n + 1 == len(data))
        worker.put_out(id, SINK, data[:-3])
        worker.put_out(id, SINK, data[-3:], last=True)
        worker.respond(id, process_bundle=fn_pb.ProcessBundleResponse())

    samples: list[dict[str, Any]] = []
    report, _ = run(of, worker, script, sampled=True, samples=samples)
    assert sum(report.elements_out.values()) == 9
    values = {each["output"]: [one["value"] for one in each["elements"]] for each in samples}
    assert values["First"] == [f"b'{n}'" for n in range(5)]
    assert len(values["Second"]) == 5


def test_bundle_waits_for_the_ends_of_samples(of: Stage, worker: list[ScriptedWorker]) -> None:
    def script(worker: ScriptedWorker, id: str) -> None:
        worker.put_out(id, SINK, b"", last=True)
        worker.respond(id, process_bundle=fn_pb.ProcessBundleResponse())
        worker.put_out(id, inner_of(of), element(b"late"), last=True)

    samples: list[dict[str, Any]] = []
    run(of, worker, script, sampled=True, samples=samples)
    assert samples[1]["elements"][0]["value"] == "b'late'"


def test_sample_that_ends_in_an_element_is_the_workers_fault(of: Stage, worker: list[ScriptedWorker]) -> None:
    def script(worker: ScriptedWorker, id: str) -> None:
        worker.put_out(id, inner_of(of), element(b"whole")[:-1], last=True)

    with pytest.raises(SdkWorkerLostError, match="malformed: the stream ends"):
        run(of, worker, script, sampled=True)


def coder(urn: str, *parts: str, payload: bytes = b"") -> Any:
    return runner_pb.Coder(spec=runner_pb.FunctionSpec(urn=urn, payload=payload), component_coder_ids=parts)


_GO = "beam:go:coder:custom:v1"
_KNOWN = common_urns.coders


def go(name: str) -> bytes:
    """Return the payload of a coder of Go's: a proto, of which the name is the first field."""
    return base64.b64encode(bytes([10, len(name)]) + name.encode() + b"\x12\x02\x08\x02")


PROTOS = {
    "bytes": coder(_KNOWN.BYTES.urn),
    "text": coder(_KNOWN.STRING_UTF8.urn),
    "int": coder(_KNOWN.LENGTH_PREFIX.urn, "custom int"),
    "custom int": coder(_GO, payload=go("varintz")),
    "uint": coder(_KNOWN.LENGTH_PREFIX.urn, "custom uint"),
    "custom uint": coder(_GO, payload=go("varuintz")),
    "other": coder(_KNOWN.LENGTH_PREFIX.urn, "custom other"),
    "custom other": coder(_GO, payload=go("mine")),
    "java": coder(_KNOWN.LENGTH_PREFIX.urn, "custom java"),
    "custom java": coder("beam:coders:javasdk:0.1", payload=b"%"),
    "some": coder(_KNOWN.ITERABLE.urn, "int"),
    "maybe": coder(_KNOWN.NULLABLE.urn, "text"),
    "global": coder(_KNOWN.GLOBAL_WINDOW.urn),
}
_BYTES = coders.BytesCoder()


@pytest.mark.parametrize(
    ("id", "value", "shown"),
    [
        ("text", b"\xc3\xa4", "'ä'"),
        ("text", b"\xff", r"b'\xff'"),
        ("int", b"\x05", "-3"),
        ("int", b"\x80\x01", "64"),
        ("int", b"\x80", r"b'\x80'"),
        ("uint", b"\x05", "5"),
        ("other", b"\x05", r"b'\x05'"),
        ("java", b"\x05", r"b'\x05'"),
        ("some", [b"\x02", b"\x03"], "[1, -2]"),
        ("maybe", None, "None"),
        ("maybe", b"a", "'a'"),
    ],
)
def test_values_of_other_sdks_are_shown_as_far_as_they_are_known(id: str, value: Any, shown: str) -> None:
    of: dict[str, Callable[[Any], Any]] = {"some": coders.IterableCoder, "maybe": coders.NullableCoder}
    ours = of[id](_BYTES) if id in of else _BYTES
    protos = {
        **PROTOS,
        "theirs": coder(_KNOWN.WINDOWED_VALUE.urn, id, "global"),
        "ours": coder(_KNOWN.WINDOWED_VALUE.urn, "our value", "global"),
        "our value": coder(PROTOS[id].spec.urn, "bytes") if id in of else PROTOS["bytes"],
    }
    sampled = SampledCollection("X", protos, RemotePort("x", "theirs", "ours"))
    encode = coders.WindowedValueCoder(ours, GlobalWindowCoder()).get_impl().encode_nested
    sampled.look(encode(WindowedValue(value, 0, (GlobalWindow(),))))
    assert [each["value"] for each in sampled.kept] == [shown]
