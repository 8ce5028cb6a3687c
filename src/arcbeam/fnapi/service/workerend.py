"""What is known of the end of an SDK worker, from its log, its output and the program that started it.

Owns which of it is part of a message. Must not know what waits for the end, nor the locks.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from arcbeam.fnapi.lost import ProcessEnd

GIVES_UP: Final = "Completing background processes"
"""SUBTLE: what Beam's boot programs log after their last error. They end 15 s later."""
EXIT_SECONDS_MAX: Final = 2.0
"""For the rest, after the worker's streams have ended."""
OUTPUT_SECONDS: Final = 0.2
"""For its output, after its end."""
_ENTRIES_MAX: Final = 4
"""Warnings and errors that are kept."""
_RECENT_SECONDS: Final = 60.0
"""Earlier errors are probably not the cause."""
_HOW = re.compile(r"^(?:User program|Python \(worker [^)]*\)) exited.*(exit status \d+|signal: [a-z ]+)")
"""What Beam's boot programs log of the worker's end. Other programs that they run may fail, too."""


class WorkerEnd:
    """Collects it. The caller has the lock.

    Attributes:
        process: the end of the process that was started; None before it.
        has_process: whether there is such a process: a service may have started the worker.
        output: returns the last lines of its output.
        logs: open streams of logs.
        gave_up: whether the boot program has logged that it ends.
    """

    def __init__(self) -> None:
        self.process: ProcessEnd | None = None
        self.has_process = True
        self.output: Callable[[], Iterable[str]] = tuple
        self.logs, self.gave_up = 0, False
        self._logged: deque[tuple[float, str]] = deque(maxlen=_ENTRIES_MAX)
        self._how = ""

    def logged(self, text: str, *, by_boot: bool) -> None:
        """Keep a warning or an error; see `Connection.logged`."""
        how = _HOW.search(text) if by_boot else None
        if how is not None:
            self._how = how[1]
        else:
            self._logged.append((time.monotonic(), text))

    def is_complete(self) -> bool:
        """Return whether nothing more is expected."""
        return bool(self._how) or self.gave_up or (not self.logs and not (self.has_process and self.process is None))

    def how(self) -> str:
        """Return the worker's exit status or signal; "" if it is unknown."""
        # The process itself may be a boot program, which has a status of its own.
        return self._how or ("" if self.process is None else self.process.how)

    def last_lines(self) -> tuple[str, ...]:
        """Return the last lines of its output, and its last errors."""
        since = time.monotonic() - _RECENT_SECONDS
        return (*self.output(), *(f"it logged: {text}" for at, text in self._logged if at >= since))
