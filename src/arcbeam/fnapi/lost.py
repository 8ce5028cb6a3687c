"""The error of an SDK worker that is gone. Light: imports neither Beam nor gRPC."""

from __future__ import annotations


class SdkWorkerLostError(Exception):
    """An SDK worker cannot be reached, does not connect, has ended, or does not follow the protocol.

    It is no error of user code, so the task is retried, with a new worker.
    """


class SdkWorkerNotStartedError(SdkWorkerLostError):
    """An SDK worker cannot be started, or does not connect.

    Args:
        why: what has failed.
        environment: its serialized environment.
    """

    def __init__(self, why: str, environment: bytes) -> None:
        super().__init__(why)
        self.environment = environment
