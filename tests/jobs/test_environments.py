"""Environments that are replaced by the embedded one, and environments that are refused, with their users."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions
from apache_beam.portability import python_urns
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.portability.api import endpoints_pb2
from apache_beam.transforms import environments as sdk

from arcbeam.errors import InvalidPipelineError, UnsupportedPipelineError
from arcbeam.jobs.environments import Sdk, runnable, with_files
from arcbeam.jobs.execution import StagedFile, StagedFileKind

pytestmark = pytest.mark.contract("API-03", "API-04")

HERE = Sdk("3.11", "2.77.0")


def environment(urn: str, payload: Any = None, capabilities: tuple[str, ...] = ()) -> Any:
    data = payload.SerializeToString() if payload is not None else b""
    return runner_pb.Environment(urn=urn, payload=data, capabilities=capabilities)


def docker(image: str, *capabilities: str) -> Any:
    return environment("beam:env:docker:v1", runner_pb.DockerPayload(container_image=image), capabilities)


PYTHON = docker("apache/beam_python3.11_sdk:2.77.0", "beam:version:sdk_base:apache/beam_python3.11_sdk:2.77.0")
EMBEDDED = environment(python_urns.EMBEDDED_PYTHON)
PROCESS = environment("beam:env:process:v1", runner_pb.ProcessPayload(command="/bin/boot"))
EXTERNAL = environment(
    "beam:env:external:v1",
    runner_pb.ExternalPayload(endpoint=endpoints_pb2.ApiServiceDescriptor(url="localhost:7"), params={"a": "b"}),
)
LOOPBACK = environment(python_urns.EMBEDDED_PYTHON_LOOPBACK)


def any_of(*choices: Any) -> Any:
    return environment("beam:env:anyof:v1", runner_pb.AnyOfEnvironmentPayload(environments=choices))


def pipeline(**users: Any) -> Any:
    """Return a pipeline with a transform for each environment, with the same name."""
    proto = runner_pb.Pipeline()
    for name, each in users.items():
        proto.components.transforms[name].unique_name = f"Step {name}"
        proto.components.transforms[name].environment_id = f"env-{name}"
        proto.components.environments[f"env-{name}"].CopyFrom(each)
    return proto


def rewritten(proto: Any) -> Any:
    return runner_pb.Pipeline.FromString(runnable(proto.SerializeToString(), HERE))


def refusals(proto: Any) -> dict[str, str]:
    with pytest.raises(UnsupportedPipelineError) as error:
        rewritten(proto)
    return {item.transform: f"{item.what} ({item.remedy})" for item in error.value.items}


@pytest.mark.parametrize(
    "given",
    [
        EMBEDDED,
        environment(python_urns.EMBEDDED_PYTHON_GRPC),
        PYTHON,
        docker("apache/beam_python3.11_sdk:2.77.0"),
        environment("beam:env:default:v1"),
        any_of(PROCESS, PYTHON),
        any_of(any_of(EXTERNAL), any_of(EMBEDDED)),
    ],
    ids=["embedded", "embedded grpc", "docker", "docker without capabilities", "default", "any of", "nested any of"],
)
def test_supported_environment_becomes_runnable(given: Any) -> None:
    result = rewritten(pipeline(a=given)).components.environments["env-a"]
    assert result.urn == python_urns.EMBEDDED_PYTHON
    assert not result.payload


IMAGE = docker("my/image:1")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (EXTERNAL, EXTERNAL),
        (PROCESS, PROCESS),
        (IMAGE, IMAGE),
        (any_of(IMAGE, PROCESS, EXTERNAL), EXTERNAL),
        (any_of(IMAGE, PROCESS), PROCESS),
    ],
    ids=["external", "process", "docker", "external first", "process before docker"],
)
def test_environment_with_workers_is_kept(given: Any, kept: Any) -> None:
    assert rewritten(pipeline(a=given)).components.environments["env-a"] == kept


@pytest.mark.parametrize("requested", ["DOCKER", "docker"])
def test_requested_container_is_not_replaced(requested: str) -> None:
    data = runnable(pipeline(a=PYTHON).SerializeToString(), HERE, requested)
    assert runner_pb.Pipeline.FromString(data).components.environments["env-a"] == PYTHON


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (EXTERNAL, "the SDK workers at "),
        (PROCESS, "the command '"),
        (IMAGE, "the container image 'my/image:1'"),
        (any_of(IMAGE, PROCESS), "the container image 'my/image:1'"),
    ],
    ids=["external", "process", "docker", "any of"],
)
def test_workers_are_refused_where_all_is_embedded(given: Any, shown: str) -> None:
    with pytest.raises(UnsupportedPipelineError) as refused:
        runnable(pipeline(a=given, b=PYTHON).SerializeToString(), HERE, workers=False)
    (item,) = refused.value.items
    assert (item.transform, item.what.startswith(shown)) == ("Step a", True), item
    assert "arcbeam serve" in item.remedy


def test_embedded_alternative_is_chosen_where_all_is_embedded() -> None:
    data = runnable(pipeline(a=any_of(IMAGE, PYTHON)).SerializeToString(), HERE, workers=False)
    found = runner_pb.Pipeline.FromString(data).components.environments["env-a"]
    assert found.urn == python_urns.EMBEDDED_PYTHON


def test_environments_with_workers_name_their_files_by_content() -> None:
    given = pipeline(a=PROCESS, b=EMBEDDED)
    for environment in given.components.environments.values():
        environment.dependencies.add(role_urn="as submitted")
    one = StagedFile("worker", Path("x"), StagedFileKind.FILE, "the role", "ab12", ("env-a", "env-b"), b"payload")
    other = StagedFile("other", Path("y"), StagedFileKind.FILE, "role", "cd34", ("env-b",))
    found = runner_pb.Pipeline.FromString(with_files(given.SerializeToString(), [one, other])).components.environments
    (artifact,) = found["env-a"].dependencies
    content = runner_pb.ArtifactFilePayload.FromString(artifact.type_payload)
    assert (artifact.role_urn, artifact.role_payload, content.path, content.sha256) == (
        "the role",
        b"payload",
        "worker",
        "ab12",
    )
    assert [each.role_urn for each in found["env-b"].dependencies] == ["as submitted"]


@pytest.mark.parametrize("sdk", ["go_sdk:2.77.0", "java17_sdk:2.73.0"])
def test_external_environment_of_another_sdk_is_kept(sdk: str) -> None:
    given = environment("beam:env:external:v1", None, (f"beam:version:sdk_base:apache/beam_{sdk}",))
    given.payload = EXTERNAL.payload
    assert rewritten(pipeline(a=given)).components.environments["env-a"] == given


def test_external_python_of_another_version_is_refused() -> None:
    given = environment("beam:env:external:v1", None, ("beam:version:sdk_base:apache/beam_python3.9_sdk:2.77.0",))
    given.payload = EXTERNAL.payload
    assert "Python 3.9 and Beam 2.77.0, but the workers run" in refusals(pipeline(a=given))["Step a"]


def test_other_fields_of_environment_are_kept() -> None:
    given = runner_pb.Environment()
    given.CopyFrom(PYTHON)
    given.resource_hints["beam:resources:min_ram_bytes:v1"] = b"5"
    given.dependencies.add(role_urn="r")
    result = rewritten(pipeline(a=given)).components.environments["env-a"]
    assert result.capabilities == given.capabilities
    assert dict(result.resource_hints) == dict(given.resource_hints)
    assert result.dependencies == given.dependencies


def test_all_unsupported_environments_are_listed_together() -> None:
    found = refusals(
        pipeline(
            a=PYTHON,
            b=environment("beam:env:process:v1", runner_pb.ProcessPayload()),
            c=environment("beam:env:external:v1", runner_pb.ExternalPayload()),
            d=LOOPBACK,
            e=docker("apache/beam_python3.9_sdk:2.77.0"),
            f=docker(""),
            g=environment("beam:env:moon:v1"),
            h=any_of(environment("beam:env:moon:v1"), docker("")),
            i=environment("beam:env:external:v1", None, ("beam:version:sdk_base:apache/beam_go_sdk:2.77.0",)),
            j=any_of(),
        )
    )
    assert found == {
        "Step b": 'a PROCESS environment without a command (set --environment_config=\'{"command": "…"}\')',
        "Step c": "an EXTERNAL environment without an address (set --environment_config=HOST:PORT)",
        "Step d": "a LOOPBACK environment (use --environment_type=beam:env:embedded_python:v1)",
        "Step e": "Python 3.9 and Beam 2.77.0, but the workers run Python 3.11 and Beam 2.77.0 "
        "(submit with the workers' versions)",
        "Step f": "a DOCKER environment without an image (set --environment_config=IMAGE)",
        "Step g": "an environment 'beam:env:moon:v1' (use --environment_type=beam:env:embedded_python:v1)",
        "Step h": "an environment 'beam:env:moon:v1' (use --environment_type=beam:env:embedded_python:v1)",
        "Step i": "an EXTERNAL environment without an address (set --environment_config=HOST:PORT)",
        "Step j": "an environment without alternatives ()",
    }


@pytest.mark.contract("API-05")
@pytest.mark.parametrize("image", ["apache/beam_python3.12_sdk:2.77.0", "apache/beam_python3.11_sdk:2.70.0"])
@pytest.mark.parametrize("urn", [python_urns.EMBEDDED_PYTHON, "beam:env:docker:v1"])
def test_other_versions_are_refused(image: str, urn: str) -> None:
    given = docker(image, f"beam:version:sdk_base:{image}")
    given.urn = urn
    there = Sdk(image[18:22], image[-6:])
    assert refusals(pipeline(a=given))["Step a"].startswith(f"{there}, but the workers run {HERE}")


def test_composites_do_not_repeat_their_parts() -> None:
    proto = pipeline(a=LOOPBACK)
    proto.components.transforms["whole"].unique_name = "Whole"
    proto.components.transforms["whole"].environment_id = "env-a"
    proto.components.transforms["whole"].subtransforms.append("a")
    assert list(refusals(proto)) == ["Step a"]


def test_unused_environment_is_omitted() -> None:
    proto = pipeline(a=PYTHON)
    proto.components.environments["java"].CopyFrom(docker("apache/beam_java17_sdk:2.77.0"))
    assert list(rewritten(proto).components.environments) == ["env-a"]


def test_environment_of_windowing_strategy_is_required() -> None:
    proto = runner_pb.Pipeline()
    proto.components.environments["e"].CopyFrom(LOOPBACK)
    proto.components.windowing_strategies["w"].environment_id = "e"
    assert list(refusals(proto)) == ["a windowing strategy"]


def test_malformed_pipeline_is_refused() -> None:
    with pytest.raises(InvalidPipelineError):
        runnable(b"\x0a\xff\xff\xff no proto")
    broken = pipeline(a=environment("beam:env:docker:v1"))
    broken.components.environments["env-a"].payload = b"\x0a\xff\xff\xff"
    with pytest.raises(InvalidPipelineError, match="'env-a'"):
        rewritten(broken)


def test_missing_environment_is_refused() -> None:
    proto = pipeline(a=PYTHON)
    del proto.components.environments["env-a"]
    with pytest.raises(InvalidPipelineError, match=r"Step a .*'env-a'"):
        rewritten(proto)


@pytest.mark.parametrize("type", ["DOCKER", "EMBEDDED_PYTHON", None])
def test_submission_of_installed_sdk_is_accepted(type: str | None) -> None:
    """Check the SDK's names of images and capabilities: an upgrade may change them."""
    names = {"EMBEDDED_PYTHON": python_urns.EMBEDDED_PYTHON}
    flags = [f"--environment_type={names.get(type, type)}"] if type else []
    options = PipelineOptions([*flags, "--experiments=disable_logging_submission_environment"])
    p = beam.Pipeline(options=options)
    _ = p | beam.Create([1]) | beam.Map(lambda x: x)
    proto = p.to_runner_api(default_environment=sdk.Environment.from_options(options.view_as(PortableOptions)))
    result = runner_pb.Pipeline.FromString(runnable(proto.SerializeToString()))
    assert {e.urn for e in result.components.environments.values()} == {python_urns.EMBEDDED_PYTHON}
    image = sdk.DockerEnvironment.default_docker_image()
    assert image == f"apache/beam_python{Sdk.here().python}_sdk:{Sdk.here().beam}"
    assert sdk.sdk_base_version_capability() == f"beam:version:sdk_base:{image}"
