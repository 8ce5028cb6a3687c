"""Window functions that only an SDK worker can call, in place of the SDK's objects.

Owns what a function knows without its code. Must not know the worker: `arcbeam.fnapi` connects it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from apache_beam.coders import coders
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.transforms.window import WindowFn

from arcbeam.errors import ArcbeamError
from arcbeam.model.urns import WORKER_WINDOWS_URN

Merges = Iterable[tuple[Any, Iterable[Any]]]
"""Merged windows, each with the windows that it replaces."""


class WorkerWindowFn(WindowFn):  # type: ignore[misc]  # Beam is untyped
    """A window function of an SDK worker.

    Args:
        strategy: its `WindowingStrategy`, as the worker has it.

    Attributes:
        strategy: the same.
        merged: asks the worker which of some windows merge; set before any bundle.
    """

    def __init__(self, strategy: Any) -> None:
        self.strategy = strategy
        self.merged: Callable[[Sequence[Any]], Merges] = self._unknown

    def is_merging(self) -> bool:
        """See the SDK's `WindowFn`."""
        return bool(self.strategy.merge_status == runner_pb.MergeStatus.NEEDS_MERGE)

    def merge(self, merge_context: Any) -> None:
        """See the SDK's `WindowFn`."""
        for window, replaced in self.merged(merge_context.windows):
            merge_context.merge(replaced, window)

    def assign(self, assign_context: Any) -> Any:
        """Windows are assigned in the worker."""
        raise self._called()

    def get_window_coder(self) -> Any:
        """Return a deterministic coder, which the SDK requires. Windows are encoded with the strategy's coder."""
        return coders.BytesCoder()

    def _unknown(self, windows: Sequence[Any]) -> Merges:
        raise self._called()

    def _called(self) -> ArcbeamError:
        return ArcbeamError(f"the window function '{self.strategy.window_fn.urn}' is called outside of its SDK worker")


def register() -> None:
    """Register such functions in the SDK. Idempotent."""

    @WindowFn.register_urn(WORKER_WINDOWS_URN, bytes)  # type: ignore[untyped-decorator]
    def of(payload: bytes, context: Any) -> WorkerWindowFn:
        return WorkerWindowFn(runner_pb.WindowingStrategy.FromString(payload))
