"""Plausible mistakes in the driver's retries of micro-batches; see `mutations`.

Owns the patches. Must not know how a mistake is found.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from unittest.mock import patch

from arcbeam.engine.coordinator import JobMachine
from simulator.mistakes_of_the_store import Mutation


def _any_run() -> AbstractContextManager[object]:
    def of_the_micro_batch(self: JobMachine, micro_batch: int, attempt: int) -> bool:
        return self._state.running is not None and self._state.running.micro_batch == micro_batch

    return patch.object(JobMachine, "_is_running", of_the_micro_batch)


def _deaths_as_failures() -> AbstractContextManager[object]:
    failed = JobMachine._micro_batch_failed

    def as_any_other(
        self: JobMachine, why: str, again: bool, session_stopped: bool = False, died: bool = False
    ) -> None:
        failed(self, why, again, session_stopped)

    return patch.object(JobMachine, "_micro_batch_failed", as_any_other)


OF_THE_DRIVER: Mapping[str, Mutation] = {
    "the report of an abandoned run accepted": _any_run,
    "dead workers retried as often as an unavailable store": _deaths_as_failures,
}
"""The mistakes by name."""
