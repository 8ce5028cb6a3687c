"""SDK workers that cannot be started are refused before the job begins."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.portability.api import endpoints_pb2

from arcbeam.errors import InvalidPipelineError
from arcbeam.jobs.option_forms import environment_type
from arcbeam.runner import sdkworkers
from arcbeam.runner.sdkworkers import check_startable, how_to_restart

pytestmark = pytest.mark.contract("API-08")


def pipeline(urn: str, payload: Any) -> Any:
    proto = runner_pb.Pipeline()
    proto.components.environments["e"].urn = urn
    proto.components.environments["e"].payload = payload.SerializeToString()
    return proto


def external(url: str) -> Any:
    endpoint = endpoints_pb2.ApiServiceDescriptor(url=url)
    return pipeline("beam:env:external:v1", runner_pb.ExternalPayload(endpoint=endpoint))


DOCKER = pipeline("beam:env:docker:v1", runner_pb.DockerPayload(container_image="my/image:1"))


def test_service_that_answers_is_accepted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        check_startable(external(f"localhost:{listening.getsockname()[1]}"), "LOOPBACK", local=True)


@pytest.fixture
def closed() -> str:
    """Return an address at which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return f"localhost:{listening.getsockname()[1]}"


def test_pool_that_does_not_answer_is_named(closed: str) -> None:
    with pytest.raises(InvalidPipelineError, match=f"workers at {closed} does not answer") as refused:
        check_startable(external(closed), "EXTERNAL", local=True, folder="/jobs/1")
    assert "start the worker pool, and submit or resume the job again" in str(refused.value)


@pytest.mark.parametrize("address", ["foo", "", "localhost:", "localhost:port", "http://localhost:50000"])
@pytest.mark.parametrize("local", [True, False])
def test_address_without_a_port_is_refused(address: str, local: bool) -> None:
    with pytest.raises(InvalidPipelineError, match=f"address '{address}' of the EXTERNAL.* is not HOST:PORT"):
        check_startable(external(address), "EXTERNAL", local=local)


def test_other_addresses_of_grpc_are_not_checked() -> None:
    check_startable(external("unix:/run/pool"), "EXTERNAL", local=True)


def test_submitter_that_has_ended_is_named(closed: str) -> None:
    with pytest.raises(
        InvalidPipelineError, match=f"submitted the job does not answer at {closed}.*LOOPBACK"
    ) as refused:
        check_startable(external(closed), "LOOPBACK", local=True, folder="/jobs/1", again=True)
    assert "run that program again with --checkpoint_dir=/jobs/1: " in str(refused.value)


def test_pool_may_start_after_the_server(closed: str) -> None:
    check_startable(external(closed), "EXTERNAL", local=True, again=True)
    with pytest.raises(InvalidPipelineError, match="is not on the executors' own machines"):
        check_startable(external("pool.example:50000"), "EXTERNAL", local=False, again=True)


def test_restart_of_a_loopback_job_names_its_folder() -> None:
    assert how_to_restart("LOOPBACK", "/jobs/1").startswith("run that program again with --checkpoint_dir=/jobs/1: ")
    assert how_to_restart("LOOPBACK", None).startswith("run that program again: the job begins again from its start.")
    assert not how_to_restart("PROCESS", "/jobs/1")


@pytest.mark.parametrize(
    "options",
    [
        {"environment_type": "loopback"},
        {"default_environment_type": "LOOPBACK"},  # Java's
        {"go_options": {"options": {"environment_type": "LOOPBACK"}}},
    ],
)
def test_type_of_environment_is_read_as_each_sdk_names_it(options: dict[str, Any]) -> None:
    assert environment_type(options) == "LOOPBACK"
    assert not environment_type({"go_options": {}})


def test_loopback_is_refused_on_a_cluster() -> None:
    with pytest.raises(InvalidPipelineError, match="LOOPBACK runs transforms in the submitting program"):
        check_startable(external("localhost:7"), "LOOPBACK", local=False)


def test_pool_of_another_machine_is_refused_on_a_cluster() -> None:
    check_startable(external("localhost:50000"), "EXTERNAL", local=False)
    with pytest.raises(InvalidPipelineError, match=r"at pool.example:50000 is not on the executors' own machines"):
        check_startable(external("pool.example:50000"), "EXTERNAL", local=False)


def test_container_needs_a_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdkworkers, "docker_problem", lambda: "Cannot connect to the Docker daemon")
    with pytest.raises(InvalidPipelineError, match=r"'my/image:1', but containers cannot run here: Cannot connect"):
        check_startable(DOCKER, "", local=True)
    check_startable(DOCKER, "", local=False)  # only the executors know


@pytest.mark.parametrize(("requested", "offers_option"), [("", True), ("DOCKER", True), ("LOOPBACK", False)])
def test_machine_without_docker_names_alternatives(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, requested: str, offers_option: bool
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InvalidPipelineError, match="containers cannot run here: there is no command 'docker'") as error:
        check_startable(DOCKER, requested, local=True)
    assert ("--environment_type" in error.value.remedy) == offers_option
    assert "--alsoStartLoopbackWorker" in error.value.remedy


def process(command: str, path: str = "") -> Any:
    env = {"PATH": path} if path else {}
    return pipeline("beam:env:process:v1", runner_pb.ProcessPayload(command=command, env=env))


def test_command_that_does_not_exist_is_named() -> None:
    with pytest.raises(InvalidPipelineError, match=r"'/no/such/boot' of the PROCESS environment.*no such program"):
        check_startable(process("/no/such/boot"), "PROCESS", local=True, inherits=False)
    check_startable(process("/no/such/boot"), "PROCESS", local=False)  # only the executors know


def test_command_that_is_no_program_is_named(tmp_path: Path) -> None:
    (tmp_path / "boot").write_text("")
    with pytest.raises(InvalidPipelineError, match=r"boot' of the PROCESS environment.*not an executable program"):
        check_startable(process(str(tmp_path / "boot")), "PROCESS", local=True)


@pytest.mark.parametrize(
    ("command", "where"), [("./boot", "in {folder}, where the workers run"), ("no-such-boot", "in the PATH")]
)
def test_command_that_is_not_found_is_named(
    command: str, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidPipelineError) as refused:
        check_startable(process(command), "PROCESS", local=True)
    expected = f"'{command}' of the PROCESS environment cannot run here: there is no such program"
    assert f"{expected} {where.format(folder=tmp_path)}" in str(refused.value)
    assert "the absolute path" in str(refused.value)
    check_startable(process(command), "PROCESS", local=False)  # only the executors know
    check_startable(process(command), "PROCESS", local=True, inherits=False)


def test_command_that_may_run_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    boot = tmp_path / "boot"
    boot.write_text("#!/bin/sh\n")
    boot.chmod(0o700)
    check_startable(process(sys.executable), "PROCESS", local=True)
    check_startable(process("./boot"), "PROCESS", local=True)
    check_startable(process("boot", path=str(tmp_path)), "PROCESS", local=True)
    with pytest.raises(InvalidPipelineError, match=r"'boot' of the PROCESS environment.*no such program in the PATH"):
        check_startable(process("boot"), "PROCESS", local=True)
