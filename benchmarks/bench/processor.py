"""The clocks for runs: wall clock and processor time.

On a machine with other load, wall clock says little. The processor time of this process and all that it has started
says more, though it includes work beside the measured one (a JVM compiles and collects).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from bench.memory import descendants

Clock = Callable[[], float]
"""Seconds since some time."""

_TICKS = os.sysconf("SC_CLK_TCK")


def processor_seconds() -> float:
    """Return what this process and its descendants have spent so far, including those that ended.

    A process that ended counts for its parent once the parent has waited for it.
    """
    return sum(_ticks(pid) for pid in (os.getpid(), *descendants(os.getpid()))) / _TICKS


def _ticks(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return 0
    # After the name, which may contain anything, are the fields from the 3rd on; the 14th to the 17th are needed.
    return sum(map(int, text.rpartition(")")[2].split()[11:15]))
