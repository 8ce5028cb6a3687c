"""What a job's processes use: the driver has started the JVM, which has started the workers.

Owns how they are distinguished, and reading /proc.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Process:
    """A process: its kind ("driver", "jvm", "worker"), seconds of processor time (with its ended children's), bytes of
    memory, and numbers of threads and open files.
    """

    kind: str
    pid: int
    cpu: float
    memory: int
    threads: int
    files: int


def processes(root: int | None = None) -> Iterator[Process]:
    """Yield the living ones below a process, and itself; it is the driver. None: this process."""
    root = root or os.getpid()
    found: dict[int, tuple[int, list[str], bytes]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                stat = (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
                found[int(entry.name)] = int(stat[1]), stat, (entry / "cmdline").read_bytes()
    below = {root}
    while more := {pid for pid, (parent, _, _) in found.items() if parent in below} - below:
        below |= more
    for pid in below & found.keys():
        _, stat, command = found[pid]
        kind = "driver" if pid == root else "jvm" if b"java" in command.split(b"\0")[0] else "worker"
        with contextlib.suppress(OSError):
            cpu = sum(map(int, stat[11:15])) / _TICK
            yield Process(kind, pid, cpu, int(stat[21]) * _PAGE, int(stat[17]), len(os.listdir(f"/proc/{pid}/fd")))


def cpu_by_kind(root: int | None = None) -> dict[str, float]:
    """Return seconds of processor time, by kind; see `processes`."""
    spent: dict[str, float] = {}
    for process in processes(root):
        spent[process.kind] = spent.get(process.kind, 0.0) + process.cpu
    return spent
