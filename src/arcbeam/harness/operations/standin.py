"""An operation that represents transforms which run elsewhere.

Owns what the stage's parts need of it. Must not know where the transforms run.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from arcbeam.harness.operations.blockoperation import BlockOperation


class StandIn(BlockOperation):
    """Represents several transforms."""

    @abstractmethod
    def timers_of(self, transform: str) -> Any:
        """Return an object with the SDK's `add_timer_info` and `process_timer` for one of the transforms."""
