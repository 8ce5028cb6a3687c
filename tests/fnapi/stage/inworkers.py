"""Pipelines of tests whose transforms run in SDK workers: threads of this process, as with LOOPBACK."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.portability.api import endpoints_pb2
from apache_beam.runners.worker.worker_pool_main import BeamFnExternalWorkerPoolServicer
from apache_beam.transforms.environments import python_sdk_capabilities

from arcbeam.fnapi.environments.workers import workers_here
from arcbeam.model.rows import BundleReport
from tests.harness.streaming.microbatches import Cut, InMicroBatches


@contextmanager
def worker_service() -> Iterator[str]:
    """Run the SDK's service that starts workers as threads; yield its address."""
    address, server = BeamFnExternalWorkerPoolServicer.start(state_cache_size=10 << 20)
    try:
        yield address
    finally:
        server.stop(None).wait()


def external(address: str) -> Any:
    """Return the environment of a service."""
    payload = runner_pb.ExternalPayload(endpoint=endpoints_pb2.ApiServiceDescriptor(url=address))
    return runner_pb.Environment(
        urn=common_urns.environments.EXTERNAL.urn,
        payload=payload.SerializeToString(),
        capabilities=python_sdk_capabilities(),
    )


class InWorkers(InMicroBatches):
    """See `InMicroBatches`; transforms run in SDK workers.

    Args:
        address: of the service that starts workers.
        cut: see `InMicroBatches`.
        change: changes the pipeline's proto before.
    """

    def __init__(
        self, address: str, cut: Cut | None = None, change: Callable[[Any], None] = lambda proto: None, **settings: Any
    ) -> None:
        super().__init__(cut, edit=self._into_workers, **settings)
        self._address, self._change = address, change

    def _drive(self, *around: Any) -> list[BundleReport]:
        # Stages are opened one after the other here; the worker of the first one serves all.
        environment = external(self._address).SerializeToString(deterministic=True)
        worker = workers_here.acquire(self.run_id, environment)
        try:
            return super()._drive(*around)
        finally:
            workers_here.release(self.run_id, environment, worker)

    def _into_workers(self, proto: Any) -> None:
        self._change(proto)
        for environment in proto.components.environments.values():
            environment.CopyFrom(external(self._address))
