"""The clocks that runs are timed by: the wall's, and the processors'.

On a machine that others use, too, wall clock says little; what processors have spent on this process and all that it
has started says more, though also what they spent beside the work (a JVM compiles and collects).
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
    """What this process and its descendants have spent so far, those that ended included.

    A process that ended counts for its parent, once that has waited for it.
    """
    return sum(_ticks(pid) for pid in (os.getpid(), *descendants(os.getpid()))) / _TICKS


def _ticks(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return 0
    # Behind the name, which may have anything in it: the fields from the 3rd on; wanted are the 14th to the 17th.
    return sum(map(int, text.rpartition(")")[2].split()[11:15]))
