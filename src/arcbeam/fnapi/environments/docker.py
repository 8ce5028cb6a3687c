"""Workers of a DOCKER environment: the command line that runs a container.

Owns the command. The container uses the host's network, where the worker reaches the task's services.
"""

from __future__ import annotations

import subprocess

from arcbeam.fnapi.environments.process import worker_arguments


def docker_command(image: str, worker: str, address: str) -> list[str]:
    """Return the command that runs a worker in a container.

    Args:
        image: the container image.
        worker: the id under which it connects.
        address: of the server to which it connects.
    """
    run = ["docker", "run", "--rm", "--network=host", f"--name=arcbeam-{worker}"]
    return [*run, image, *worker_arguments(worker, address)]


def docker_problem() -> str:
    """Return why no container can run on this machine; "" if one can."""
    try:
        done = subprocess.run(
            ["docker", "version", "--format={{.Server.Version}}"], capture_output=True, text=True, timeout=10
        )
    except FileNotFoundError:
        return "there is no command 'docker'"
    except subprocess.TimeoutExpired:
        return "'docker version' does not answer"
    return (done.stderr.strip() or "'docker version' failed") if done.returncode else ""
