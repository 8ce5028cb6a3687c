"""The SDK workers of this process: one for each job and environment, shared by the job's stages.

Owns when a worker is started and stopped. Must not know what it runs.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import Final

from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb

from arcbeam.fnapi.environments import starting
from arcbeam.fnapi.environments.starting import Started
from arcbeam.fnapi.lost import SdkWorkerLostError, SdkWorkerNotStartedError
from arcbeam.fnapi.service.connection import Connection
from arcbeam.fnapi.service.provision import Provision
from arcbeam.fnapi.service.server import server_here

_CONNECT_SECONDS_MAX: Final = 180.0
"""From the start of a worker until it must have connected. It may have to install packages first."""


@dataclass(slots=True)
class _Worker:
    """A worker in use.

    Attributes:
        connection: its connection.
        started: the worker itself; None before it is started.
        users: the number of open stages that use it.
    """

    connection: Connection
    started: Started | None = None
    users: int = 0


class Workers:
    """Workers by job and environment. SUBTLE: a forked process has none, whatever its parent has."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._workers: dict[tuple[str, bytes], _Worker] = {}

    def acquire(self, job: str, environment: bytes, provision: Provision = Provision()) -> Connection:  # noqa: B008
        """Return the worker of a job's environment; start one if there is none, or the last one is lost.

        Args:
            job: id of the job.
            environment: the serialized environment.
            provision: what its workers get before they start.

        Raises:
            SdkWorkerNotStartedError: it cannot be started, or does not connect.
            SubmitterLostError: it ran in the program that submitted the job, which has ended.
        """
        if self._pid != os.getpid():
            self._workers.clear()
            self._pid = os.getpid()
        worker = self._workers.get((job, environment))
        if worker is not None and worker.connection.is_lost:
            self._stop(worker)
            worker = None
        if worker is None:
            worker = self._workers[job, environment] = self._started(environment, provision)
        worker.users += 1
        return worker.connection

    def _started(self, environment: bytes, provision: Provision) -> _Worker:
        proto, server = runner_pb.Environment.FromString(environment), server_here()
        connection = server.expect(starting.name_of(proto), provision, proto)
        worker = _Worker(connection)
        try:
            worker.started = starting.start(
                proto, connection.worker, server.address, connection.process_ended, provision.restart
            )
            connection.set_output(worker.started.last_lines, process=starting.has_process(proto))
            connection.connected(_CONNECT_SECONDS_MAX)
        except SdkWorkerLostError as e:
            ended = starting.is_program(proto) and connection.is_lost
            self._stop(worker)
            raise SdkWorkerNotStartedError(str(e), environment, ended=ended) from None
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
        lost = worker.connection.is_lost
        # First the streams: then most workers end by themselves.
        server_here().forget(worker.connection)
        if worker.started is None:
            return
        if lost:
            # A task that failed for it must not wait for what is left of it: a boot program has seconds for its end.
            threading.Thread(target=worker.started.stop, name="sdk-worker-stop", daemon=True).start()
        else:
            worker.started.stop()


workers_here: Final = Workers()
"""The workers of this process."""


class StageWorkers:
    """The workers that one open stage uses. All stages of the job share them.

    Args:
        job: id of the job.
        provision: what its workers get before they start.
    """

    def __init__(self, job: str, provision: Provision = Provision()) -> None:  # noqa: B008
        self.job, self._provision = job, provision
        self._acquired: list[tuple[bytes, Connection]] = []

    @property
    def environments(self) -> list[bytes]:
        """The serialized environments of the workers."""
        return [environment for environment, _ in self._acquired]

    def acquire(self, environment: bytes) -> Connection:
        """Return the worker of an environment; see `Workers.acquire`."""
        worker = workers_here.acquire(self.job, environment, self._provision)
        self._acquired.append((environment, worker))
        return worker

    def release(self) -> None:
        """End the use of all of them."""
        for environment, worker in self._acquired:
            workers_here.release(self.job, environment, worker)
        self._acquired.clear()
