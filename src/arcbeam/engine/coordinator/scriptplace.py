"""A position in the script of a job.

Owns the value. Must not know when the machine requests an event.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from arcbeam.model.script import ScriptEvent, ScriptOver


@dataclass(frozen=True, slots=True)
class ScriptPlace:
    """The part of a script that is committed.

    Attributes:
        events: the number of committed events.
        over: the script's end is among them.
    """

    events: int = 0
    over: bool = False

    def after(self, event: ScriptEvent | None) -> ScriptPlace:
        """Return the position after that event; the same position if there is none."""
        return self if event is None else ScriptPlace(self.events + 1, isinstance(event, ScriptOver))


AT_BEGINNING: Final = ScriptPlace()
