"""How far the script of a job has come.

Owns the value. Must not know when an event is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from arcbeam.model.script import ScriptEvent, ScriptOver


@dataclass(frozen=True, slots=True)
class ScriptPlace:
    """What of a script is real.

    Attributes:
        events: how many have happened.
        over: the end was among them.
    """

    events: int = 0
    over: bool = False

    def after(self, event: ScriptEvent | None) -> ScriptPlace:
        """The same when that has happened, too."""
        return self if event is None else ScriptPlace(self.events + 1, isinstance(event, ScriptOver))


AT_BEGINNING: Final = ScriptPlace()
