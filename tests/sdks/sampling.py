"""Samples of the jobs of `surviving`, requested while they run."""

from __future__ import annotations

import threading
from collections.abc import Callable

from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.streaming.status.folder import status_in
from arcbeam.streaming.status.samples import sampled
from tests.waiting import until

_SECONDS = 120.0
Values = dict[str, list[str]]


def samples_of(folder: str, allow: Callable[[int], None], first: int) -> Values:
    """Return the sampled values of the stages that process each number, by output, while more numbers flow.

    Args:
        folder: of a job of the program "stopping".
        allow: allows its numbers below a limit.
        first: the limit so far.
    """
    blobs, ended, limit = FolderBlobs(folder), threading.Event(), first

    def flow() -> None:
        nonlocal limit
        while not ended.wait(0.4):
            limit = min(limit + 1, 119)
            allow(limit)

    flowing = threading.Thread(target=flow)
    found: Values = {}
    until(lambda: status_in(blobs).stages)
    flowing.start()
    try:
        # The other stages process elements only at the beginning or at the end.
        names = [str(each.stage) for each in status_in(blobs).stages]
        for stage in [name for name in names if any(part in name for part in ("Process", "rdinal"))]:
            for output in sampled(blobs, stage, _SECONDS):
                found[output["output"]] = [each["value"] for each in output["elements"]]
    finally:
        ended.set()
        flowing.join()
    return found
