"""Points in the life of a transaction at which a process is killed or suspended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

_CALLS: Final = ("init_transactions", "send_offsets_to_transaction", "commit_transaction")
POINTS: Final = tuple(f"{when} {call}" for call in _CALLS for when in ("before", "after"))
"""Between them are: `init`, what is produced, the register, and the commit."""


class Pointed:
    """A transactional producer that reports when it is at a point.

    Args:
        of: the producer.
        reached: called with the point.
    """

    def __init__(self, of: Any, reached: Callable[[str], None]) -> None:
        self._of, self._reached = of, reached

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._of, name)
        if name not in _CALLS:
            return found

        def call(*arguments: Any) -> Any:
            self._reached(f"before {name}")
            result = found(*arguments)
            self._reached(f"after {name}")
            return result

        return call


def install(module: Any, reached: Callable[[str], None]) -> None:
    """Let all transactional producers of a process report points.

    Args:
        module: `arcbeam.io.kafka.producing`.
        reached: called with the point.
    """
    begins = module.LibrdkafkaShard.__init__

    def beginning(self: Any, *arguments: Any) -> None:
        begins(self, *arguments)
        self._producer = Pointed(self._producer, reached)

    module.LibrdkafkaShard.__init__ = beginning
