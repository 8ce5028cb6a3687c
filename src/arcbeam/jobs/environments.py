"""The environments of a pipeline that this runner supports.

Owns which environments stay, and which become the embedded Python one. A pure function of the pipeline; must not know
how an environment is started.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from apache_beam import version as beam_version
from apache_beam.portability import common_urns, python_urns
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from google.protobuf.message import DecodeError

from arcbeam.errors import InvalidPipelineError, Unsupported, UnsupportedPipelineError
from arcbeam.jobs.execution import StagedFile

_VERSION_CAPABILITY = "beam:version:sdk_base:"
"""Prefix of the capability that identifies an SDK; the name of its default container image follows."""

_IMAGE = re.compile(r"apache/beam_(?P<language>[a-z]+)(?P<language_version>[0-9.]*)_sdk:(?P<beam>.+)")

EMBEDDED_TYPE: str = python_urns.EMBEDDED_PYTHON
"""The value for `--environment_type`: the SDK has short names for other environments only."""
_EMBEDDED_REMEDY = f"use --environment_type={EMBEDDED_TYPE}"
_SERVER_REMEDY = (
    "start `arcbeam serve`, and submit with --runner=PortableRunner --job_endpoint=localhost:8099 "
    f"--environment_type={EMBEDDED_TYPE}"
)

_ENV = common_urns.environments
_WITH_WORKERS = (_ENV.EXTERNAL.urn, _ENV.PROCESS.urn, _ENV.DOCKER.urn)
"""Environments with workers of their own; the first is preferred."""
_NAMES = {
    python_urns.EMBEDDED_PYTHON_LOOPBACK: "a LOOPBACK environment",
    python_urns.SUBPROCESS_SDK: "a subprocess environment",
}


@dataclass(frozen=True, slots=True)
class Sdk:
    """A Python SDK.

    Attributes:
        python: its "major.minor".
        beam: the SDK's version.
    """

    python: str
    beam: str

    @classmethod
    def here(cls) -> Sdk:
        """Return the SDK of this process."""
        return cls(f"{sys.version_info[0]}.{sys.version_info[1]}", beam_version.__version__)

    def __str__(self) -> str:
        return f"Python {self.python} and Beam {self.beam}"


def runnable(pipeline: bytes, here: Sdk | None = None, requested: str = "", *, workers: bool = True) -> bytes:
    """Choose the environments in which a pipeline runs.

    Embedded Python environments are replaced by the embedded one if their versions of Python and Beam are the same; so
    is the SDK's default container image, unless containers were requested. Their dependencies, capabilities and
    resource hints stay. EXTERNAL, PROCESS and DOCKER environments stay as they are: their workers run the transforms.
    Among alternatives, the first that can be embedded is chosen, else EXTERNAL before PROCESS before DOCKER. Unused
    environments are omitted if they cannot run, or have workers of their own.

    Args:
        pipeline: a serialized Pipeline proto.
        here: the SDK of the workers (default: that of this process).
        requested: the option `environment_type`; "" if it is not set.
        workers: whether transforms may run in SDK workers; else all must be embedded.

    Returns:
        The rewritten pipeline, serialized.

    Raises:
        InvalidPipelineError: not a pipeline, or it names an environment that it does not contain.
        UnsupportedPipelineError: transforms need other environments; it lists all of them.
    """
    here = here or Sdk.here()
    try:
        proto = runner_pb.Pipeline.FromString(pipeline)
    except DecodeError as e:
        raise InvalidPipelineError(f"the pipeline's proto is malformed: {e}") from e
    found = proto.components.environments
    users = _users(proto)
    for id, names in users.items():
        if id not in found:
            raise InvalidPipelineError(f"{names[0]} names an environment '{id}' that the pipeline does not contain")
    items: list[Unsupported] = []
    for id in list(found):
        try:
            candidates = list(_expanded(found[id]))
            refusals = [_refusal(candidate, here, workers=workers) for candidate in candidates]
        except DecodeError as e:
            raise InvalidPipelineError(f"the payload of environment '{id}' is malformed: {e}") from e
        can_run = [each for each, refusal in zip(candidates, refusals, strict=True) if refusal is None]
        ranks = [_rank(each, here, keep_docker=requested.upper() == "DOCKER") for each in can_run]
        if ranks and (id in users or not min(ranks)):
            copy = runner_pb.Environment()
            copy.CopyFrom(can_run[ranks.index(min(ranks))])
            if not min(ranks):
                copy.urn, copy.payload = python_urns.EMBEDDED_PYTHON, b""
            found[id].CopyFrom(copy)
        elif id in users:
            refusal = next((r for r in refusals if r), _Refusal("an environment without alternatives", ""))
            items += [Unsupported(name, refusal.what, refusal.remedy) for name in users[id]]
        else:
            del found[id]
    if items:
        raise UnsupportedPipelineError(tuple(sorted(items, key=lambda item: item.transform)))
    rewritten: bytes = proto.SerializeToString()
    return rewritten


def with_files(pipeline: bytes, files: Iterable[StagedFile]) -> bytes:
    """Return a pipeline whose environments name the files that were staged for them, by their content.

    Only environments with workers of their own: files of embedded Python reach it in another way.
    """
    proto = runner_pb.Pipeline.FromString(pipeline)
    for id, environment in proto.components.environments.items():
        if environment.urn not in _WITH_WORKERS:
            continue
        del environment.dependencies[:]
        for file in files:
            if id in file.environments:
                content = runner_pb.ArtifactFilePayload(path=file.name, sha256=file.sha256)
                environment.dependencies.add(
                    type_urn=common_urns.artifact_types.FILE.urn,
                    type_payload=content.SerializeToString(),
                    role_urn=file.role,
                    role_payload=file.role_payload,
                )
    named: bytes = proto.SerializeToString()
    return named


def of_workers(pipeline: Any) -> frozenset[str]:
    """Return the ids of the environments that have workers of their own."""
    return frozenset(id for id, each in pipeline.components.environments.items() if each.urn in _WITH_WORKERS)


def _rank(environment: Any, here: Sdk, *, keep_docker: bool) -> int:
    """Return the place of an environment among alternatives that can run; 0: it becomes the embedded one."""
    if environment.urn not in _WITH_WORKERS:
        return 0
    if environment.urn == _ENV.DOCKER.urn and not keep_docker:
        image = runner_pb.DockerPayload.FromString(environment.payload).container_image
        if _image_refusal(image, here) is None:
            return 0
    return 1 + _WITH_WORKERS.index(environment.urn)


@dataclass(frozen=True, slots=True)
class _Refusal:
    what: str
    remedy: str


def _users(proto: Any) -> dict[str, list[str]]:
    """Return environment ids with the names of their users: leaves, because composites repeat their parts."""
    users: dict[str, list[str]] = {}
    for transform in proto.components.transforms.values():
        if transform.environment_id and not transform.subtransforms:
            users.setdefault(transform.environment_id, []).append(transform.unique_name)
    for strategy in proto.components.windowing_strategies.values():
        if strategy.environment_id and strategy.environment_id not in users:
            users[strategy.environment_id] = ["a windowing strategy"]
    return users


def _expanded(environment: Any) -> Iterator[Any]:
    """Yield the environment, or its alternatives."""
    if environment.urn != _ENV.ANYOF.urn:
        yield environment
        return
    for each in runner_pb.AnyOfEnvironmentPayload.FromString(environment.payload).environments:
        yield from _expanded(each)


def _refusal(environment: Any, here: Sdk, *, workers: bool) -> _Refusal | None:
    """Return why transforms cannot run in an environment; None if they can. Workers: see `runnable`."""
    refusal = _invalid(environment, here)
    if refusal is not None or workers or not _rank(environment, here, keep_docker=False):
        return refusal
    return _Refusal(f"{_shown(environment)}, which only a job server runs", _SERVER_REMEDY)


def _shown(environment: Any) -> str:
    """Return the name of an environment that has workers of its own."""
    if environment.urn == _ENV.DOCKER.urn:
        return f"the container image '{runner_pb.DockerPayload.FromString(environment.payload).container_image}'"
    if environment.urn == _ENV.PROCESS.urn:
        return f"the command '{runner_pb.ProcessPayload.FromString(environment.payload).command}'"
    return f"the SDK workers at {runner_pb.ExternalPayload.FromString(environment.payload).endpoint.url}"


def _invalid(environment: Any, here: Sdk) -> _Refusal | None:
    """Return why no transforms can run in an environment on any runner of arcbeam."""
    urn = environment.urn
    images = [
        c.removeprefix(_VERSION_CAPABILITY) for c in environment.capabilities if c.startswith(_VERSION_CAPABILITY)
    ]
    if urn == _ENV.DOCKER.urn:
        images.append(runner_pb.DockerPayload.FromString(environment.payload).container_image)
    embedded = urn in (python_urns.EMBEDDED_PYTHON, python_urns.EMBEDDED_PYTHON_GRPC, _ENV.DEFAULT.urn)
    if not embedded and urn not in _WITH_WORKERS:
        return _Refusal(_NAMES.get(urn, f"an environment '{urn}'"), _EMBEDDED_REMEDY)
    for image in images:
        # Workers of their own may run any image and any other SDK; a Python one shares pickles with this process.
        if (embedded or _is_python(image)) and (refusal := _image_refusal(image, here)) is not None:
            return refusal
    if urn == _ENV.EXTERNAL.urn and not runner_pb.ExternalPayload.FromString(environment.payload).endpoint.url:
        return _Refusal("an EXTERNAL environment without an address", "set --environment_config=HOST:PORT")
    if urn == _ENV.PROCESS.urn and not runner_pb.ProcessPayload.FromString(environment.payload).command:
        return _Refusal("a PROCESS environment without a command", 'set --environment_config=\'{"command": "…"}\'')
    if urn == _ENV.DOCKER.urn and not images[-1]:
        return _Refusal("a DOCKER environment without an image", "set --environment_config=IMAGE")
    return None


def _is_python(image: str) -> bool:
    match = _IMAGE.fullmatch(image)
    return match is not None and match["language"] == "python"


def _image_refusal(image: str, here: Sdk) -> _Refusal | None:
    """Return why an SDK image differs from what the workers run; None if it does not."""
    match = _IMAGE.fullmatch(image)
    if match is None:
        return _Refusal(
            f"the container image '{image}'",
            f"{_EMBEDDED_REMEDY}, and --requirements_file or --setup_file for the packages in the image",
        )
    if match["language"] != "python":
        return _Refusal(f"a {match['language'].capitalize()} environment ({image})", "")
    there = Sdk(match["language_version"], match["beam"])
    if there != here:
        return _Refusal(f"{there}, but the workers run {here}", "submit with the workers' versions")
    return None
