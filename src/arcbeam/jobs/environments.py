"""Which environments of a pipeline the runner can give it, and which not.

Owns the rewriting of environments to the embedded Python one. A pure function of the pipeline; must not know how an
environment is started.
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
"""Prefix of the capability with which an SDK says what it is: the name of its default container image follows."""

_IMAGE = re.compile(r"apache/beam_(?P<language>[a-z]+)(?P<language_version>[0-9.]*)_sdk:(?P<beam>.+)")

EMBEDDED_TYPE: str = python_urns.EMBEDDED_PYTHON
"""What `--environment_type` takes: the SDK has short names for other environments only."""
_EMBEDDED_REMEDY = f"use --environment_type={EMBEDDED_TYPE}"

_ENV = common_urns.environments
_NAMES = {
    _ENV.PROCESS.urn: "a PROCESS environment",
    _ENV.EXTERNAL.urn: "an EXTERNAL or LOOPBACK environment",
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
        """The one that this process runs."""
        return cls(f"{sys.version_info[0]}.{sys.version_info[1]}", beam_version.__version__)

    def __str__(self) -> str:
        return f"Python {self.python} and Beam {self.beam}"


def embedded(pipeline: bytes, here: Sdk | None = None) -> bytes:
    """Puts a pipeline into the embedded Python environment.

    Embedded Python environments, and the SDK's default container image, of the same Python and Beam versions become
    the embedded one; their dependencies, capabilities and resource hints stay. Environments that nothing uses are
    left out if they could not be embedded.

    Args:
        pipeline: a serialized Pipeline proto.
        here: what the workers run (default: what this process runs).

    Returns:
        The rewritten pipeline, serialized.

    Raises:
        InvalidPipelineError: not a pipeline, or it names an environment that it does not contain.
        UnsupportedPipelineError: every transform that needs another environment.
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
        if None in refusals:
            chosen = candidates[refusals.index(None)]
            copy = runner_pb.Environment()
            copy.CopyFrom(chosen)
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
    """Environment ids, and the names of what needs them: leaves, since composites only repeat their parts."""
    users: dict[str, list[str]] = {}
    for transform in proto.components.transforms.values():
        if transform.environment_id and not transform.subtransforms:
            users.setdefault(transform.environment_id, []).append(transform.unique_name)
    for strategy in proto.components.windowing_strategies.values():
        if strategy.environment_id and strategy.environment_id not in users:
            users[strategy.environment_id] = ["a windowing strategy"]
    return users


def _expanded(environment: Any) -> Iterator[Any]:
    """The environment, or the alternatives that it offers."""
    if environment.urn != _ENV.ANYOF.urn:
        yield environment
        return
    for each in runner_pb.AnyOfEnvironmentPayload.FromString(environment.payload).environments:
        yield from _expanded(each)


def _refusal(environment: Any, here: Sdk) -> _Refusal | None:
    """Why an environment cannot be embedded; None if it can."""
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
    if foreign is not None:
        return foreign
    return _Refusal(_NAMES.get(urn, f"an environment '{urn}'"), _EMBEDDED_REMEDY)


def _image_refusal(image: str, here: Sdk) -> _Refusal | None:
    """Why the content of an SDK image is not what the workers run."""
    match = _IMAGE.fullmatch(image)
    if match is None:
        return _Refusal(
            f"the container image '{image}'",
            f"{_EMBEDDED_REMEDY}, and --requirements_file or --setup_file for what the image holds",
        )
    if match["language"] != "python":
        return _Refusal(f"a {match['language'].capitalize()} environment ({image})", "")
    there = Sdk(match["language_version"], match["beam"])
    if there != here:
        return _Refusal(f"{there}, but the workers run {here}", "submit with the workers' versions")
    return None
