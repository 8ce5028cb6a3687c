"""Whether the SDK workers of a job can be started from where Spark's tasks run.

Part of the composition root, like `runner`. Owns what can be known about it before a job begins.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb

from arcbeam.errors import InvalidPipelineError
from arcbeam.fnapi.environments.docker import docker_problem
from arcbeam.jobs.environments import EMBEDDED_TYPE
from arcbeam.store.blobs.backends import shown

_URNS = common_urns.environments
_SECONDS = 5.0
_HERE = ("localhost", "127.0.0.1", "::1")
_SCHEMES = ("unix:", "unix-abstract:", "vsock:", "dns:", "ipv4:", "ipv6:")
"""Forms of addresses that gRPC knows besides HOST:PORT; they are not checked."""


def check_startable(
    pipeline: Any,
    requested: str,
    *,
    local: bool,
    inherits: bool = True,
    folder: str | None = None,
    again: bool = False,
) -> None:
    """Refuse a pipeline whose SDK workers cannot be started.

    Args:
        pipeline: its proto, with the environments in which it runs.
        requested: the option `environment_type`, in capitals; "" if it is not set.
        local: whether tasks run on this machine.
        inherits: whether they have this process's working directory and its PATH; a Spark Connect server has its own.
        folder: where the job keeps its state; None: it is not known, or there is none.
        again: a job server resumes the job by itself. A worker pool may start later: tasks without it are tried again.

    Raises:
        InvalidPipelineError: names the environment.
    """
    for environment in pipeline.components.environments.values():
        if environment.urn == _URNS.EXTERNAL.urn:
            url = runner_pb.ExternalPayload.FromString(environment.payload).endpoint.url
            if not again or not local or requested == "LOOPBACK":
                _check_external(url, requested, local, folder)
        elif environment.urn == _URNS.DOCKER.urn and local and (problem := docker_problem()):
            image = runner_pb.DockerPayload.FromString(environment.payload).container_image
            raise InvalidPipelineError(
                f"the pipeline needs the container image '{image}', but containers cannot run here: {problem}",
                _without_docker(requested),
            )
        elif environment.urn == _URNS.PROCESS.urn and local:
            _check_command(runner_pb.ProcessPayload.FromString(environment.payload), inherits)


def _without_docker(requested: str) -> str:
    """Return what to do on a machine that runs no containers."""
    expanded = "start the expansion service that gave the image with own workers (Java's: --alsoStartLoopbackWorker)"
    if requested not in ("", "DOCKER"):  # the option has set another environment, so the image is not the submitter's
        return f"start the Docker daemon; or {expanded}"
    return (
        f"start the Docker daemon; or set --environment_type to LOOPBACK, PROCESS or, for Python, to {EMBEDDED_TYPE}; "
        f"or, for a transform of another SDK in the pipeline, {expanded}"
    )


def how_to_restart(requested: str, folder: str | None) -> str:
    """Return how a job continues whose SDK workers ran in its submitter, after that has ended; "" for other workers.

    Args:
        requested: see `check_startable`.
        folder: where the job keeps its state; None: in no place that outlives it.
    """
    if requested != "LOOPBACK":
        return ""
    again = f"run that program again with --checkpoint_dir={shown(folder)}" if folder else "run that program again"
    kept = "the job resumes after its last commit" if folder else "the job begins again from its start"
    return (
        f"{again}: {kept}. To be independent of it, set --environment_type to PROCESS, DOCKER or, for "
        f"Python, to {EMBEDDED_TYPE}"
    )


def _check_external(url: str, requested: str, local: bool, folder: str | None) -> None:
    if not url.startswith(_SCHEMES) and not any(_address(url)):
        raise InvalidPipelineError(
            f"the address '{url}' of the EXTERNAL environment is not HOST:PORT",
            "set --environment_config to the address of the worker pool, for example localhost:50000",
        )
    if not local:
        # Workers connect to the task's process, which listens only to its own machine.
        if requested == "LOOPBACK":
            raise InvalidPipelineError(
                f"LOOPBACK runs transforms in the submitting program, at {url}, which the executors of a cluster "
                "cannot use",
                f"set --environment_type to PROCESS, DOCKER or, for Python, to {EMBEDDED_TYPE}",
            )
        if _host(url) not in _HERE:
            raise InvalidPipelineError(
                f"the EXTERNAL environment at {url} is not on the executors' own machines",
                "run a worker pool beside each executor, and set --environment_config=localhost:PORT",
            )
        return
    for host, port in _address(url):
        try:
            socket.create_connection((host, port), _SECONDS).close()
        except OSError as e:
            if restart := how_to_restart(requested, folder):
                raise InvalidPipelineError(
                    f"the program that submitted the job does not answer at {url} ({e}). The job's transforms run in "
                    "that program (LOOPBACK), until the job ends",
                    restart,
                ) from None
            raise InvalidPipelineError(
                f"the service for SDK workers at {url} does not answer ({e})",
                "start the worker pool, and submit or resume the job again",
            ) from None


def _check_command(process: Any, inherits: bool) -> None:
    """Check a command as the processes of this machine find it: a relative path from their folder, a name by `PATH`."""
    command = process.command
    if not inherits and not os.path.isabs(command):
        return
    if shutil.which(command, path=process.env.get("PATH")) is not None:
        return
    if os.sep in command and os.path.exists(command):
        problem = "it is not an executable program"
    elif os.path.isabs(command):
        problem = "there is no such program"
    else:
        where = f"in {os.getcwd()}, where the workers run" if os.sep in command else "in the PATH"
        problem = f"there is no such program {where}"
    raise InvalidPipelineError(
        f"the command '{command}' of the PROCESS environment cannot run here: {problem}",
        """set --environment_config='{"command": "…"}' to the absolute path of the SDK's boot program""",
    )


def _host(url: str) -> str:
    return next((host for host, _ in _address(url)), url)


def _address(url: str) -> Iterator[tuple[str, int]]:
    """Yield host and port of "host:port"; nothing for other forms."""
    try:
        parts = urlsplit(f"//{url}")
        if parts.hostname and parts.port:
            yield parts.hostname, parts.port
    except ValueError:
        return
