"""The environments of a pipeline that this runner supports.

Owns which environments stay, and which become the embedded Python one. A pure function of the pipeline; must not know
how an environment is started.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from apache_beam import version as beam_version
from apache_beam.portability import common_urns, python_urns
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from google.protobuf.message import DecodeError

from arcbeam.errors import InvalidPipelineError, Unsupported, UnsupportedPipelineError

_VERSION_CAPABILITY = "beam:version:sdk_base:"
"""Prefix of the capability that identifies an SDK; the name of its default container image follows."""

_IMAGE = re.compile(r"apache/beam_(?P<language>[a-z]+)(?P<language_version>[0-9.]*)_sdk:(?P<beam>.+)")

EMBEDDED_TYPE: str = python_urns.EMBEDDED_PYTHON
"""The value for `--environment_type`: the SDK has short names for other environments only."""
_EMBEDDED_REMEDY = f"use --environment_type={EMBEDDED_TYPE}"

_ENV = common_urns.environments
_NAMES = {
    _ENV.PROCESS.urn: "a PROCESS environment",
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


def runnable(pipeline: bytes, here: Sdk | None = None) -> bytes:
    """Choose the environments in which a pipeline runs.

    Embedded Python environments, and the SDK's default container image, are replaced by the embedded one if their
    versions of Python and Beam are the same. Their dependencies, capabilities and resource hints stay. EXTERNAL
    environments of such versions stay as they are: their workers run the transforms. Among alternatives, the first that
    can be embedded is chosen, else the first EXTERNAL one. Unused environments are omitted if they cannot run.

    Args:
        pipeline: a serialized Pipeline proto.
        here: the SDK of the workers (default: that of this process).

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
            refusals = [_refusal(candidate, here) for candidate in candidates]
        except DecodeError as e:
            raise InvalidPipelineError(f"the payload of environment '{id}' is malformed: {e}") from e
        can_run = [each for each, refusal in zip(candidates, refusals, strict=True) if refusal is None]
        if can_run:
            chosen = next((each for each in can_run if each.urn != _ENV.EXTERNAL.urn), can_run[0])
            copy = runner_pb.Environment()
            copy.CopyFrom(chosen)
            if copy.urn != _ENV.EXTERNAL.urn:
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


def _refusal(environment: Any, here: Sdk) -> _Refusal | None:
    """Return why transforms cannot run in an environment; None if they can."""
    urn = environment.urn
    images = [
        c.removeprefix(_VERSION_CAPABILITY) for c in environment.capabilities if c.startswith(_VERSION_CAPABILITY)
    ]
    foreign = next((refusal for image in images if (refusal := _image_refusal(image, here)) is not None), None)
    if urn in (python_urns.EMBEDDED_PYTHON, python_urns.EMBEDDED_PYTHON_GRPC, _ENV.DEFAULT.urn):
        return foreign
    if urn == _ENV.DOCKER.urn:
        image = runner_pb.DockerPayload.FromString(environment.payload).container_image
        return foreign or _image_refusal(image, here)
    if foreign is not None and (urn != _ENV.EXTERNAL.urn or any(map(_is_python, images))):
        return foreign
    if urn == _ENV.EXTERNAL.urn:
        if runner_pb.ExternalPayload.FromString(environment.payload).endpoint.url:
            return None
        return _Refusal("an EXTERNAL environment without an address", "set --environment_config=HOST:PORT")
    return _Refusal(_NAMES.get(urn, f"an environment '{urn}'"), _EMBEDDED_REMEDY)


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
