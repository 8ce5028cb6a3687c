"""How the workers of an environment are started: by a service, as a process, in a container.

Owns the choice by the environment's URN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb

from arcbeam.fnapi.environments import external
from arcbeam.fnapi.environments.docker import docker_command
from arcbeam.fnapi.environments.process import WorkerProcess, worker_arguments
from arcbeam.fnapi.lost import ProcessEnd

_URNS = common_urns.environments


class Started(Protocol):
    """A worker that was started."""

    def stop(self) -> None:
        """End the worker, if it has not ended itself. Idempotent."""

    def last_lines(self) -> tuple[str, ...]:
        """Return the lines of its output that may say why it ended, or a line that says where they are."""


@dataclass(frozen=True, slots=True)
class _ByService:
    payload: Any
    worker: str

    def stop(self) -> None:
        external.stop(self.payload, self.worker)

    def last_lines(self) -> tuple[str, ...]:
        return (f"its output is in the log of the service at {self.payload.endpoint.url}",)


def name_of(environment: Any) -> str:
    """Return an environment's name for messages.

    Raises:
        ValueError: it has no workers.
    """
    match environment.urn:
        case _URNS.EXTERNAL.urn:
            return f"the environment at {external.payload_of(environment).endpoint.url}"
        case _URNS.PROCESS.urn:
            return f"the command '{runner_pb.ProcessPayload.FromString(environment.payload).command}'"
        case _URNS.DOCKER.urn:
            return f"the image '{runner_pb.DockerPayload.FromString(environment.payload).container_image}'"
    raise ValueError(f"an environment '{environment.urn}' has no SDK workers")


def is_program(environment: Any) -> bool:
    """Return whether workers of an environment are a program of this machine: nothing else is needed to start them."""
    return bool(environment.urn == _URNS.PROCESS.urn)


def has_process(environment: Any) -> bool:
    """Return whether the end of a process is known that runs a worker, or has started it."""
    return bool(environment.urn != _URNS.EXTERNAL.urn)


def start(
    environment: Any, worker: str, address: str, ended: Callable[[ProcessEnd], None], restart: str = ""
) -> Started:
    """Start a worker.

    Args:
        environment: `Environment` proto.
        worker: the id under which it connects.
        address: of the server to which it connects.
        ended: is called if the worker's process ends.
        restart: see `external.start`.

    Raises:
        SdkWorkerLostError: it cannot be started.
        SubmitterLostError: it ran in the program that submitted the job, which has ended.
        ValueError: the environment has no workers.
    """
    if environment.urn == _URNS.EXTERNAL.urn:
        payload = external.payload_of(environment)
        external.start(payload, worker, address, restart)
        return _ByService(payload, worker)
    if environment.urn == _URNS.PROCESS.urn:
        process = runner_pb.ProcessPayload.FromString(environment.payload)
        command = [process.command, *worker_arguments(worker, address), "--semi_persist_dir={folder}"]
        return WorkerProcess(command, process.env, ended)
    if environment.urn == _URNS.DOCKER.urn:
        image = runner_pb.DockerPayload.FromString(environment.payload).container_image
        return WorkerProcess(docker_command(image, worker, address), {}, ended)
    raise ValueError(f"an environment '{environment.urn}' has no SDK workers")
