"""The error of an SDK worker that is gone. Light: imports neither Beam nor gRPC."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """How a worker's process has ended.

    Attributes:
        why: a sentence without its end.
        how: its exit status or signal.
    """

    why: str
    how: str


@dataclass(frozen=True, slots=True)
class WorkerAccount:
    """What is known of a worker that has ended.

    Attributes:
        why: how it ended, as a sentence without its end.
        last_lines: lines that it, and the program that started it, have written and logged last.
        how: its exit status or signal; "" if unknown.
        transforms: names of the transforms of its open bundle; only one, if that one is known to have run.
        idle: whether it ended after bundles had ended, and had none then: no bundle is the cause.
    """

    why: str
    last_lines: tuple[str, ...] = ()
    how: str = ""
    transforms: tuple[str, ...] = ()
    idle: bool = False

    def __str__(self) -> str:
        return "\n  ".join((self.why, *(each.replace("\n", "\n  ") for each in self.last_lines)))


class SdkWorkerLostError(Exception):
    """An SDK worker cannot be reached, does not connect, has ended, or does not follow the protocol.

    It is no error of user code, so the task is retried, with a new worker.

    Args:
        why: what has failed.
        account: returns what is known of the worker's end; may wait a short time for it. None: it has not ended.
    """

    def __init__(self, why: str, account: Callable[[], WorkerAccount] | None = None) -> None:
        super().__init__(why)
        self._account = account

    def account(self) -> WorkerAccount:
        """Return what is known of the worker's end."""
        return (
            WorkerAccount(str(self), how="it does not follow the protocol")
            if self._account is None
            else self._account()
        )


class SdkWorkerNotStartedError(SdkWorkerLostError):
    """An SDK worker cannot be started, or does not connect.

    Args:
        why: what has failed.
        environment: its serialized environment.
        ended: whether its process was started, and has ended.
    """

    def __init__(self, why: str, environment: bytes, *, ended: bool = False) -> None:
        super().__init__(why)
        self.environment, self.ended = environment, ended
