"""Artifact staging: copies the files of a pipeline from its submitter into the job's folder.

Owns `ArtifactStagingService` (the reverse retrieval protocol: the server requests, the submitter's stream answers), the
rules for artifact names, and the check of their content. Must not know what the files are used for.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_artifact_api_pb2 as artifact_pb
from apache_beam.portability.api import beam_artifact_api_pb2_grpc as artifact_grpc
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from google.protobuf.message import DecodeError

from arcbeam.errors import InvalidPipelineError, JobNotFoundError, SubmissionError
from arcbeam.jobs.execution import JobState, StagedFile, StagedFileKind
from arcbeam.jobs.lifecycle import Jobs
from arcbeam.store.blobs.private import make_folder, open_new

_LOG = logging.getLogger("arcbeam.jobs")

_TYPES = common_urns.artifact_types
_ROLES = common_urns.artifact_roles
_KINDS = {
    kind.value: kind for kind in StagedFileKind if kind not in (StagedFileKind.FILE, StagedFileKind.PYPI_REQUIREMENTS)
}


def declared(pipeline: Any) -> dict[str, list[Any]]:
    """Return the ArtifactInformation of each environment with artifacts, by environment id."""
    return {
        id: list(environment.dependencies)
        for id, environment in pipeline.components.environments.items()
        if environment.dependencies
    }


def check_names(declared: Mapping[str, Sequence[Any]]) -> None:
    """Refuse names that could leave the job's folder.

    Raises:
        InvalidPipelineError: a name is invalid.
    """
    for artifacts in declared.values():
        for artifact in artifacts:
            staged_name(artifact)


def staged_name(artifact: Any) -> str:
    """Return the valid name under which to stage an artifact; without a name, one made from its content.

    Raises:
        InvalidPipelineError: see `check_names`.
    """
    if artifact.role_urn == _ROLES.STAGING_TO.urn:
        try:
            name = runner_pb.ArtifactStagingToRolePayload.FromString(artifact.role_payload).staged_name
        except DecodeError as e:
            raise InvalidPipelineError(f"the role of an artifact is malformed: {e}") from e
        return safe_name(name)
    digest = hashlib.sha256(artifact.SerializeToString(deterministic=True)).hexdigest()[:16]
    if artifact.role_urn == _ROLES.PIP_REQUIREMENTS_FILE.urn:
        return f"requirements-{digest}.txt"
    return f"artifact-{digest}"


def safe_name(name: str) -> str:
    """Return the name, if it is a relative path that stays inside its folder.

    Raises:
        InvalidPipelineError: it is not.
    """

    def refused(why: str) -> InvalidPipelineError:
        return InvalidPipelineError(
            f"the artifact name {name[:200]!r} is refused: {why}", "stage it under a relative name inside its folder"
        )

    if not name:
        raise refused("it is empty")
    if name.startswith("/") or "\\" in name or PurePosixPath(name).is_absolute() or name[1:2] == ":":
        raise refused("it is absolute, or not a POSIX path")
    if any(ord(c) < 32 or ord(c) == 127 for c in name):
        raise refused("it holds control characters")
    for part in name.split("/"):
        if part == "..":
            raise refused("it contains '..', which can lead out of the job's folder")
        if part in ("", "."):
            raise refused("it has an empty part")
        if len(part.encode("utf-8", "surrogatepass")) > 255:
            raise refused("a part of it is longer than 255 bytes")
    return name


@dataclass(frozen=True, slots=True)
class _Received:
    path: Path
    sha256: str


class StagingServicer(artifact_grpc.ArtifactStagingServiceServicer):  # type: ignore[misc]  # Beam is untyped
    """Fetches the artifacts of a prepared job from its submitter, environment by environment.

    Args:
        jobs: owns the jobs.
    """

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    def ReverseArtifactRetrievalService(self, responses: Iterator[Any], context: Any = None) -> Iterator[Any]:
        """Run one staging session: requests out, the submitter's responses in. The first response is the token.

        Raises:
            JobNotFoundError: no job has the token.
            SubmissionError: the job has started, an artifact's content does not match its hash, or the submitter
                disconnected.
            InvalidPipelineError: an artifact's name is invalid.
        """
        token = _next(responses).staging_token
        try:
            record = self._jobs.registry.job(token)
        except JobNotFoundError:
            raise JobNotFoundError(f"there is no job with the staging token '{token}'") from None
        if record.state is not JobState.STOPPED:
            raise _ended(token, record.state)
        try:
            yield from self._staged(token, responses)
        finally:
            # SUBTLE: a cancellation removed only the files that were already there.
            state = self._state(token)
            if state is None or state.terminal:
                shutil.rmtree(self._jobs.folder(token), ignore_errors=True)
                raise _ended(token, state or "forgotten")

    def _state(self, job: str) -> JobState | None:
        try:
            return self._jobs.registry.job(job).state
        except JobNotFoundError:
            return None

    def _staged(self, token: str, responses: Iterator[Any]) -> Iterator[Any]:
        pipeline = runner_pb.Pipeline.FromString(self._jobs.registry.pipeline(token))
        folder = self._jobs.folder(token)
        make_folder(folder)
        files: dict[tuple[str, str], StagedFile] = {}  # (name, sha256): environments often need the same files
        for environment, artifacts in declared(pipeline).items():
            yield artifact_pb.ArtifactRequestWrapper(
                resolve_artifact=artifact_pb.ResolveArtifactsRequest(artifacts=artifacts)
            )
            for artifact in list(_next(responses).resolve_artifact_response.replacements):
                name = staged_name(artifact)
                yield artifact_pb.ArtifactRequestWrapper(get_artifact=artifact_pb.GetArtifactRequest(artifact=artifact))
                received = _receive(responses, folder)
                _check_content(artifact, name, received)
                files[name, received.sha256] = _placed(files, folder, name, artifact, received, environment)
        self._jobs.staged(token, list(files.values()))
        _LOG.info("job %s: %d files staged", token, len(files))


def _ended(job: str, state: str) -> SubmissionError:
    return SubmissionError(f"the files of job '{job}' cannot be staged: it is {state}", "submit the pipeline again")


def _next(responses: Iterator[Any]) -> Any:
    # SUBTLE: a StopIteration must not leave a generator: it would become a RuntimeError without a message.
    for response in responses:
        return response
    raise SubmissionError(
        "the submitter ended the staging of artifacts before all files had arrived; submit the pipeline again"
    )


def _receive(responses: Iterator[Any], folder: Path) -> _Received:
    path = folder / f".part-{uuid.uuid4().hex}"
    digest = hashlib.sha256()
    try:
        with open_new(path) as file:
            while True:
                response = _next(responses)
                data = response.get_artifact_response.data
                digest.update(data)
                file.write(data)
                if response.is_last:
                    return _Received(path, digest.hexdigest())
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _check_content(artifact: Any, name: str, received: _Received) -> None:
    payload: Any
    if artifact.type_urn == _TYPES.FILE.urn:
        payload = runner_pb.ArtifactFilePayload.FromString(artifact.type_payload)
    elif artifact.type_urn == _TYPES.URL.urn:
        payload = runner_pb.ArtifactUrlPayload.FromString(artifact.type_payload)
    else:
        return
    if payload.sha256 and payload.sha256.lower() != received.sha256:
        received.path.unlink()
        raise SubmissionError(
            f"the artifact '{name}' arrived with SHA-256 {received.sha256}, but {payload.sha256} was announced",
            "submit again; the file was changed, or damaged in transit",
        )


def _placed(
    files: Mapping[tuple[str, str], StagedFile],
    folder: Path,
    name: str,
    artifact: Any,
    received: _Received,
    environment: str,
) -> StagedFile:
    """Move a received file to its name. The same content under the same name is kept once."""
    before = files.get((name, received.sha256))
    if before is not None:
        received.path.unlink()
        path, environments = before.path, (*before.environments, environment)
    else:
        taken = any(other == name for other, _ in files)
        path = folder / received.sha256[:12] / name if taken else folder / name
        try:
            make_folder(path.parent)
            os.replace(received.path, path)
        except OSError as e:
            received.path.unlink(missing_ok=True)
            raise InvalidPipelineError(f"the artifact name '{name}' collides with another artifact's: {e}") from e
        environments = (environment,)
    if artifact.role_urn == _ROLES.PIP_REQUIREMENTS_FILE.urn:
        kind = StagedFileKind.PYPI_REQUIREMENTS
    else:
        kind = _KINDS.get(name, StagedFileKind.FILE)
    of = tuple(dict.fromkeys(environments))
    return StagedFile(name, path, kind, artifact.role_urn, received.sha256, of, artifact.role_payload)
