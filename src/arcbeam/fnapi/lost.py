"""The error of an SDK worker that is gone. Light: imports neither Beam nor gRPC."""

from __future__ import annotations


class SdkWorkerLostError(Exception):
    """An SDK worker cannot be reached, does not connect, has ended, or does not follow the protocol.

    It is no error of user code, so the task is retried, with a new worker.
    """
