"""The name of a job without a name is that of its script."""

from __future__ import annotations

import base64
import bz2
import pickle
import zlib
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb

from arcbeam.jobs.naming import script_of
from arcbeam.translate.proto import pipeline_proto
from tests.jobs.fakes import Client

pytestmark = pytest.mark.contract("OPS-02")


def function_of(file: str, module: str = "__main__") -> Any:
    """Return a function that seems to be a script's."""
    names: dict[str, Any] = {"__name__": module}
    exec(compile("def double(x):\n    return 2 * x\n", file, "exec"), names)
    return names["double"]


def pipeline_of(function: Any) -> Any:
    p = beam.Pipeline()
    _ = p | beam.Create([1]) | beam.Map(function)
    return pipeline_proto(p)


def with_payload(payload: bytes) -> Any:
    pipeline = runner_pb.Pipeline()
    pardo = runner_pb.ParDoPayload(do_fn=runner_pb.FunctionSpec(payload=payload))
    pipeline.components.transforms["t"].spec.urn = common_urns.primitives.PAR_DO.urn
    pipeline.components.transforms["t"].spec.payload = pardo.SerializeToString()
    return pipeline


def test_script_of_functions_is_found() -> None:
    assert script_of(pipeline_of(function_of("/jobs/nightly.py"))) == "nightly"


@pytest.mark.parametrize("folder", ["arcbeam", "apache_beam", "apache_beam/examples"])
def test_script_in_folder_named_like_library_is_named(folder: str) -> None:
    assert script_of(pipeline_of(function_of(f"/jobs/{folder}/nightly.py"))) == "nightly"


@pytest.mark.parametrize("file", ["/x/apache_beam/transforms/core.py", "/x/site-packages/tools.py"])
def test_library_is_not_a_script(file: str) -> None:
    assert script_of(pipeline_of(function_of(file))) == ""


def test_function_of_module_has_no_script() -> None:
    assert script_of(pipeline_of(len)) == ""
    assert script_of(pipeline_of(function_of("<stdin>"))) == ""


@pytest.mark.parametrize(
    "payload",
    [b"", b"no base64!", base64.b64encode(b"not compressed"), base64.b64encode(zlib.compress(b"no pickle"))],
)
def test_unreadable_payload_has_no_name(payload: bytes) -> None:
    assert script_of(with_payload(payload)) == ""


def test_nothing_is_unpickled() -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return exec, ("raise SystemExit('unpickled')",)

    for compress in (zlib.compress, bz2.compress):
        data = compress(pickle.dumps([Trap(), "/jobs/trap.py", "__main__"]))
        assert script_of(with_payload(base64.b64encode(data))) == "trap"


def test_service_names_job_by_script(client: Client) -> None:
    pipeline = pipeline_of(function_of("/jobs/nightly.py"))
    assert client.prepare(pipeline, name="job").preparation_id.startswith("nightly-")
    assert client.prepare(pipeline, name="job", job_name="mine").preparation_id.startswith("mine-")
