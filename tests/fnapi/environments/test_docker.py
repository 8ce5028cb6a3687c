"""The command of a container, and why none can run."""

from __future__ import annotations

from pathlib import Path

import pytest

from arcbeam.fnapi.environments.docker import docker_command, docker_problem


def test_container_reaches_the_task_by_the_network_of_its_host() -> None:
    command = docker_command("my/image:1", "w", "localhost:7")
    assert command[:6] == ["docker", "run", "--rm", "--network=host", "--name=arcbeam-w", "my/image:1"]
    assert "--id=w" in command[6:]
    assert "--provision_endpoint=localhost:7" in command[6:]


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("echo 27.1", ""),
        ("echo 'Cannot connect to the Docker daemon' >&2; exit 1", "Cannot connect to the Docker daemon"),
        (None, "there is no command 'docker'"),
    ],
)
def test_problem_is_what_docker_says(
    script: str | None, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if script is not None:
        (tmp_path / "docker").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert docker_problem() == problem
