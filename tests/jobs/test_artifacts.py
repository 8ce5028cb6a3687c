"""Staging: the received files, their names, and what is refused."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from apache_beam.portability.api import beam_artifact_api_pb2 as artifact_pb
from apache_beam.portability.api import beam_job_api_pb2 as job_pb
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.runners.portability import artifact_service

from arcbeam.errors import InvalidPipelineError, SubmissionError
from arcbeam.jobs.artifacts import StagingServicer, safe_name
from arcbeam.jobs.execution import JobEvents, JobState, StagedFileKind, Submission
from arcbeam.jobs.lifecycle import Jobs
from tests.golden.texts import check_message
from tests.jobs.fakes import WAIT, Client, Fake, a_pipeline, artifact, serving

pytestmark = pytest.mark.contract("API-02", "API-05")


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str, bytes], Path]:
    def make(name: str, content: bytes = b"content") -> Path:
        path = tmp_path / "submitter" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        return path

    return make


def offer(client: Client, token: str) -> None:
    """Stage the files as the Python SDK does between Prepare and Run."""
    retrieval = artifact_service.ArtifactRetrievalService(artifact_service.BeamFilesystemHandler(None).file_reader)
    artifact_service.offer_artifacts(client.artifacts, retrieval, token)


def run(client: Client, token: str) -> list[str]:
    return client.states(client.jobs.Run(job_pb.RunJobRequest(preparation_id=token), timeout=WAIT).job_id)


def seen(fake: Fake) -> dict[str, Any]:
    """Let the executor read its files: they are removed when the job has ended."""
    found: dict[str, Any] = {}

    def behave(submission: Submission, events: JobEvents) -> None:
        assert submission.artifacts is not None
        found["artifacts"] = submission.artifacts
        found["content"] = [file.path.read_bytes() for file in submission.artifacts.files]

    fake.behave = behave
    return found


def test_files_of_python_pipeline_are_staged(client: Client, fake: Fake, file: Callable[..., Path]) -> None:
    big = bytes(range(256)) * 20_000  # more than a chunk
    files = {
        "pickled_main_session": (b"session", StagedFileKind.MAIN_SESSION),
        "requirements.txt": (b"attrs\n", StagedFileKind.REQUIREMENTS),
        "workflow.tar.gz": (b"tar", StagedFileKind.SETUP_PACKAGE),
        "extra_packages.txt": (b"mine-1.0.whl\nmissing.whl\n", StagedFileKind.PACKAGES_LIST),
        "submission_environment_dependencies.txt": (b"a==1", StagedFileKind.SUBMISSION_ENVIRONMENT),
        "mine-1.0.whl": (big, StagedFileKind.FILE),
        "empty": (b"", StagedFileKind.FILE),
        "data/words.txt": (b"words", StagedFileKind.FILE),
    }
    found = seen(fake)
    paths = {name: file(name.replace("/", "-"), content) for name, (content, _) in files.items()}
    token = client.prepare(a_pipeline(*(artifact(path, name) for name, path in paths.items()))).preparation_id
    offer(client, token)
    assert run(client, token)[-1] == "DONE"
    artifacts = found["artifacts"]
    assert {f.name: f.kind for f in artifacts.files} == {name: kind for name, (_, kind) in files.items()}
    assert dict(zip((f.name for f in artifacts.files), found["content"], strict=True)) == {
        name: content for name, (content, _) in files.items()
    }
    for staged in artifacts.files:
        assert staged.path == artifacts.folder / staged.name
        assert staged.sha256 == hashlib.sha256(files[staged.name][0]).hexdigest()
        assert staged.environments == ("e",)
        assert staged.role == "beam:artifact:role:staging_to:v1"
    assert not artifacts.folder.exists()


def test_staging_without_files_ends_at_once(client: Client, fake: Fake) -> None:
    token = client.prepare(a_pipeline()).preparation_id
    answers = client.artifacts.ReverseArtifactRetrievalService(
        iter([artifact_pb.ArtifactResponseWrapper(staging_token=token)]), timeout=WAIT
    )
    assert not list(answers)
    assert run(client, token)[-1] == "DONE"


def test_role_of_another_sdk_is_kept(client: Client, fake: Fake, file: Callable[..., Path]) -> None:
    binary = artifact(file("worker"), "")
    binary.role_urn, binary.role_payload = "beam:artifact:role:go_worker_binary:v1", b"payload"
    found = seen(fake)
    token = client.prepare(a_pipeline(binary)).preparation_id
    offer(client, token)
    run(client, token)
    (staged,) = found["artifacts"].files
    assert (staged.role, staged.role_payload) == (binary.role_urn, b"payload")


def test_shared_file_is_staged_once(client: Client, fake: Fake, file: Callable[..., Path]) -> None:
    same, other = file("same", b"same"), file("other", b"other")
    pipeline = a_pipeline(artifact(same, "session"))
    pipeline.components.environments["f"].dependencies.append(artifact(same, "session"))
    pipeline.components.environments["g"].dependencies.append(artifact(other, "session"))
    found = seen(fake)
    token = client.prepare(pipeline).preparation_id
    offer(client, token)
    run(client, token)
    pairs = list(zip(found["artifacts"].files, found["content"], strict=True))
    assert {content: sorted(file.environments) for file, content in pairs} == {b"same": ["e", "f"], b"other": ["g"]}
    assert {file.name for file, _ in pairs} == {"session"}
    assert len({file.path for file, _ in pairs}) == 2


def test_requirements_and_embedded_files_are_staged(client: Client, fake: Fake, file: Callable[..., Path]) -> None:
    requirements = artifact(file("r", b"attrs"), "")
    requirements.role_urn, requirements.role_payload = "beam:artifact:role:pip_requirements_file:v1", b""
    embedded = artifact(file("x"), "embedded.txt")
    embedded.type_urn = "beam:artifact:type:embedded:v1"
    embedded.type_payload = runner_pb.EmbeddedFilePayload(data=b"inside").SerializeToString()
    found = seen(fake)
    token = client.prepare(a_pipeline(requirements, embedded)).preparation_id
    offer(client, token)
    run(client, token)
    one, two = found["artifacts"].files
    assert one.kind is StagedFileKind.PYPI_REQUIREMENTS
    assert one.name.startswith("requirements-")
    assert (two.name, two.kind) == ("embedded.txt", StagedFileKind.FILE)
    assert found["content"] == [b"attrs", b"inside"]


@pytest.mark.parametrize("name", ["a", "a/b.txt", "..a", "a..b", "é", "a b"])
def test_valid_artifact_names_are_accepted(name: str) -> None:
    assert safe_name(name) == name


BAD_NAMES = ["", "..", "../a", "a/../b", "a/..", "/etc/passwd", "//a", "a//b", ".", "a/.", "C:\\a", "C:/a", "..\\a"]


@pytest.mark.contract("OPS-05")
@pytest.mark.parametrize("name", [*BAD_NAMES, "a\0", "a\nb", "a" * 256])
def test_invalid_artifact_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidPipelineError, match=re.escape(repr(name[:200]))):
        safe_name(name)


@pytest.mark.contract("OPS-05")
@pytest.mark.parametrize("name", BAD_NAMES)
def test_invalid_names_are_refused_at_submission(client: Client, file: Callable[..., Path], name: str) -> None:
    with pytest.raises(grpc.RpcError) as error:
        client.prepare(a_pipeline(artifact(file("x"), name)))
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert repr(name) in error.value.details()
    assert client.jobs.GetJobs(job_pb.GetJobsRequest()).job_info == []


def stage_by_hand(client: Client, token: str, responses: list[Any]) -> list[Any]:
    first = artifact_pb.ArtifactResponseWrapper(staging_token=token)
    return list(client.artifacts.ReverseArtifactRetrievalService(iter([first, *responses]), timeout=WAIT))


@pytest.mark.contract("OPS-05")
def test_invalid_name_in_resolution_is_refused(tmp_path: Path, fake: Fake, file: Callable[..., Path]) -> None:
    with serving(tmp_path / "jobs", fake) as (_, client):
        token = client.prepare(a_pipeline(artifact(file("x"), "good"))).preparation_id
        resolved = artifact_pb.ResolveArtifactsResponse(replacements=[artifact(file("x"), "../../bad")])
        with pytest.raises(grpc.RpcError) as error:
            stage_by_hand(client, token, [artifact_pb.ArtifactResponseWrapper(resolve_artifact_response=resolved)])
        assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "../../bad" in error.value.details()
        with pytest.raises(grpc.RpcError) as error:
            run(client, token)
        assert error.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert token in error.value.details()
    assert not list(tmp_path.rglob("bad"))


@pytest.mark.parametrize("written", [str, str.upper, str.title], ids=["small", "capital", "mixed"])
@pytest.mark.parametrize("announced", ["right", "wrong"])
def test_content_is_compared_with_hash(
    client: Client, fake: Fake, file: Callable[..., Path], announced: str, written: Callable[[str], str]
) -> None:
    path = file("x", b"content")
    digest = written(hashlib.sha256(b"content" if announced == "right" else b"other").hexdigest())
    token = client.prepare(a_pipeline(artifact(path, "x", digest))).preparation_id
    if announced == "right":
        offer(client, token)
        assert run(client, token)[-1] == "DONE"
        return
    with pytest.raises(grpc.RpcError) as error:
        offer(client, token)
    assert error.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert digest in error.value.details()
    with pytest.raises(grpc.RpcError, match=token):
        run(client, token)


@pytest.mark.parametrize("announced", [b"content", b"other"])
def test_content_of_url_is_compared_with_hash(client: Client, file: Callable[..., Path], announced: bytes) -> None:
    """The submitter reads the URL and sends the content."""
    of, digest = artifact(file("x"), "x"), hashlib.sha256(announced).hexdigest()
    of.type_urn = "beam:artifact:type:url:v1"
    of.type_payload = runner_pb.ArtifactUrlPayload(url="https://example.org/x", sha256=digest).SerializeToString()
    token = client.prepare(a_pipeline(of)).preparation_id
    content = artifact_pb.GetArtifactResponse(data=b"content")
    responses = [
        artifact_pb.ArtifactResponseWrapper(
            resolve_artifact_response=artifact_pb.ResolveArtifactsResponse(replacements=[of])
        ),
        artifact_pb.ArtifactResponseWrapper(get_artifact_response=content, is_last=True),
    ]
    if announced == b"content":
        stage_by_hand(client, token, responses)
        assert run(client, token)[-1] == "DONE"
        return
    with pytest.raises(grpc.RpcError) as error:
        stage_by_hand(client, token, responses)
    assert error.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert digest in error.value.details()


def test_unknown_staging_token_is_refused(client: Client) -> None:
    with pytest.raises(grpc.RpcError) as error:
        stage_by_hand(client, "j-9", [])
    assert error.value.code() is grpc.StatusCode.NOT_FOUND
    assert "'j-9'" in error.value.details()


def test_disconnected_submitter_can_stage_again(tmp_path: Path, fake: Fake, file: Callable[..., Path]) -> None:
    x = artifact(file("x"), "x")
    with serving(tmp_path / "jobs", fake) as (_, client):
        token = client.prepare(a_pipeline(x)).preparation_id
        resolved = artifact_pb.ResolveArtifactsResponse(replacements=[x])
        half = artifact_pb.ArtifactResponseWrapper(get_artifact_response=artifact_pb.GetArtifactResponse(data=b"con"))
        with pytest.raises(grpc.RpcError) as error:
            stage_by_hand(
                client, token, [artifact_pb.ArtifactResponseWrapper(resolve_artifact_response=resolved), half]
            )
        assert error.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        check_message("staging-ended-early", error.value.details())
        assert not [path for path in (tmp_path / "jobs" / "staged").rglob("*") if path.is_file()]
        offer(client, token)
        assert run(client, token)[-1] == "DONE"


def test_files_of_started_job_cannot_be_staged_again(client: Client, file: Callable[..., Path]) -> None:
    token = client.prepare(a_pipeline(artifact(file("x"), "x"))).preparation_id
    offer(client, token)
    run(client, token)
    with pytest.raises(grpc.RpcError, match="DONE"):
        offer(client, token)


@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_job_cancelled_during_staging_leaves_no_files(
    tmp_path: Path, jobs: Jobs, file: Callable[..., Path], number: int
) -> None:
    """The job is cancelled before each message that the submitter sends."""
    one = artifact(file("x"), "a/x")
    pipeline = a_pipeline(one, artifact(file("x"), "y"))
    id = jobs.prepare("words", pipeline.SerializeToString(), {}, b"", needs_files=True)
    some = artifact_pb.GetArtifactResponse(data=b"a")
    resolved = artifact_pb.ResolveArtifactsResponse(replacements=[one])
    responses = [
        artifact_pb.ArtifactResponseWrapper(staging_token=id),
        artifact_pb.ArtifactResponseWrapper(resolve_artifact_response=resolved),
        artifact_pb.ArtifactResponseWrapper(get_artifact_response=some),
        artifact_pb.ArtifactResponseWrapper(get_artifact_response=some, is_last=True),
    ]

    def sent() -> Iterator[Any]:
        for each, response in enumerate(responses):
            if each == number:
                assert jobs.cancel(id) is JobState.CANCELLED
            yield response

    with pytest.raises(SubmissionError) as error:
        list(StagingServicer(jobs).ReverseArtifactRetrievalService(sent()))
    check_message("staging-of-ended-job", str(error.value), job=id)
    assert not jobs.folder(id).exists()


def test_file_and_folder_of_one_name_are_refused(client: Client, file: Callable[..., Path]) -> None:
    token = client.prepare(a_pipeline(artifact(file("x"), "a"), artifact(file("x"), "a/b"))).preparation_id
    with pytest.raises(grpc.RpcError, match="'a/b'"):
        offer(client, token)


def test_staged_files_survive_a_restart(tmp_path: Path, fake: Fake, file: Callable[..., Path]) -> None:
    found = seen(fake)
    with serving(tmp_path / "jobs", fake) as (_, client):
        token = client.prepare(a_pipeline(artifact(file("x", b"kept"), "x"))).preparation_id
        offer(client, token)
    with serving(tmp_path / "jobs", fake) as (_, client):
        assert run(client, token)[-1] == "DONE"
    assert found["content"] == [b"kept"]
