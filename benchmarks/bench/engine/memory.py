"""Peak memory of one micro-batch on a shard of many keys: `python -m bench.engine.memory KEYS`; prints MiB.

Makes the shard, copies it, reads and writes some of its keys at random, and commits. Counts only the process's own
memory, because the system can reclaim pages of mapped files.
"""

from __future__ import annotations

import random
import re
import sys
import threading
from pathlib import Path

from arcbeam.engine.state.cells import Cells
from bench.engine.state import TOUCHED, VALUE, WINDOW, Value, key_of, rows_of, scratch
from bench.engine.views import DiskShard

_STATUS = Path("/proc/self/status")


def own() -> int:
    """Return KiB of anonymous memory."""
    found = re.search(r"^RssAnon:\s+(\d+) kB", _STATUS.read_text(encoding="ascii"), re.MULTILINE)
    return int(found[1]) if found else 0


class Peak(threading.Thread):
    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.kib = 0
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.wait(0.02):
            self.kib = max(self.kib, own())

    def stop(self) -> None:
        self._stopped.set()
        self.join()


def main() -> None:
    keys = int(sys.argv[1])
    peak = Peak()
    peak.start()
    with scratch() as folder:
        shard = DiskShard(Path(folder))
        shard.fill(rows_of(keys))
        view = shard.view()
        value = Value(Cells(view, 1), "value")
        rng = random.Random(1)
        for _ in range(TOUCHED):
            key = key_of(rng.randrange(keys))
            assert value.value(key, WINDOW) is not None
            value.write(key, WINDOW, VALUE)
        shard.commit(view)
        shard.view().close()
        shard.forget()
    peak.stop()
    print(round(max(peak.kib, own()) / 1024, 1))


if __name__ == "__main__":
    main()
