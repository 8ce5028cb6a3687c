"""Peak memory of a run: a thread that sums the memory of processes found through /proc.

A page that forked Python workers share with their parent counts once: each has its share, as in Linux's "proportional
set size".
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

_PAGE = os.sysconf("SC_PAGE_SIZE")


class Sampler:
    """A context manager; afterwards, `python` and `jvm` are the peaks in bytes of the processes that `tag` names.

    Args:
        tag: `NAME=value` in the environment of the Python processes to count.
        jvm: whether to count Java processes among the descendants of this one.
        seconds: interval between samples.
    """

    def __init__(self, tag: str, *, jvm: bool, seconds: float = 0.2) -> None:
        self.python = 0
        self.jvm = 0
        self.total = 0
        self._tag = tag.encode()
        self._count_jvm = jvm
        self._seconds = seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample_until_stopped, daemon=True)
        self._driver = _resident(os.getpid())

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(
        self, type: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _sample_until_stopped(self) -> None:
        while not self._stop.wait(self._seconds):
            self._sample()
        self._sample()

    def _sample(self) -> None:
        python = max(_resident(os.getpid()) - self._driver, 0)
        jvm = 0
        for pid in descendants(os.getpid()):
            if self._is_java(pid):
                jvm += _resident(pid) if self._count_jvm else 0
            elif self._is_tagged(pid):
                python += _own(pid)
        self.python = max(self.python, python)
        self.jvm = max(self.jvm, jvm)
        self.total = max(self.total, python + jvm)

    def _is_tagged(self, pid: int) -> bool:
        return self._tag in _read(f"/proc/{pid}/environ").split(b"\0")

    def _is_java(self, pid: int) -> bool:
        return _read(f"/proc/{pid}/comm").strip() == b"java"


def descendants(root: int) -> Iterator[int]:
    """Yield the process ids of all descendants, without the root itself."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            # The command's name, in parentheses, may contain anything: fields are counted after it.
            fields = _read(f"/proc/{entry.name}/stat").rpartition(b")")[2].split()
            if len(fields) > 1:
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = list(children.get(root, []))
    while found:
        pid = found.pop()
        found += children.get(pid, [])
        yield pid


def _resident(pid: int) -> int:
    fields = _read(f"/proc/{pid}/statm").split()
    return int(fields[1]) * _PAGE if len(fields) > 1 else 0


def _own(pid: int) -> int:
    for line in _read(f"/proc/{pid}/smaps_rollup").splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def _read(path: str) -> bytes:
    """A process may end at any time: then it has nothing to say."""
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""
