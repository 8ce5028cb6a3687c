"""The SDK workers of this process: one for each job and environment, shared by the job's stages.

Owns when a worker is started and stopped. Must not know what it runs.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Final

from arcbeam.fnapi.environments import external
from arcbeam.fnapi.service.connection import Connection
from arcbeam.fnapi.service.server import server_here

_SECONDS: Final = 60.0
"""From the start of a worker until it must have connected."""


@dataclass(slots=True)
class _Worker:
    """A worker in use.

    Attributes:
        payload: of its environment.
        connection: its connection.
        users: the number of open stages that use it.
    """

    payload: Any
    connection: Connection
    users: int = 0


class Workers:
    """Workers by job and environment. SUBTLE: a forked process has none, whatever its parent has."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._workers: dict[tuple[str, bytes], _Worker] = {}

    def acquire(self, job: str, environment: bytes) -> Connection:
        """Return the worker of a job's environment; start one if there is none, or the last one is lost.

        Args:
            job: id of the job.
            environment: the serialized environment.

        Raises:
            SdkWorkerLostError: it cannot be started, or does not connect.
        """
        if self._pid != os.getpid():
            self._workers.clear()
            self._pid = os.getpid()
        worker = self._workers.get((job, environment))
        if worker is not None and worker.connection.is_lost:
            self._stop(worker)
            worker = None
        if worker is None:
            worker = self._workers[job, environment] = self._started(environment)
        worker.users += 1
        return worker.connection

    def _started(self, environment: bytes) -> _Worker:
        payload, server = external.payload_of(environment), server_here()
        connection = server.expect(f"the environment at {payload.endpoint.url}")
        worker = _Worker(payload, connection)
        try:
            external.start(payload, connection.worker, server.address)
            connection.connected(_SECONDS)
        except BaseException:
            self._stop(worker)
            raise
        return worker

    def release(self, job: str, environment: bytes, connection: Connection) -> None:
        """End the use of a worker; the last one stops it."""
        worker = self._workers.get((job, environment))
        if worker is None or worker.connection is not connection:
            server_here().forget(connection)  # it was lost, and there is another one
            return
        worker.users -= 1
        if not worker.users:
            del self._workers[job, environment]
            self._stop(worker)

    @staticmethod
    def _stop(worker: _Worker) -> None:
        external.stop(worker.payload, worker.connection.worker)
        server_here().forget(worker.connection)


workers_here: Final = Workers()
"""The workers of this process."""
