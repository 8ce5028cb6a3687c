"""Who publishes part files, and what says that a window is over.

Owns the order among the two, and nothing else: how it is done is the staging's.
"""

from __future__ import annotations

from collections.abc import Sequence

from arcbeam.io.parts import successes
from arcbeam.io.parts.staging import Staged
from arcbeam.io.parts.work import PartFile, Plain, Work
from arcbeam.io.publishing import Publisher


class PublishParts(Publisher):
    """See `Publisher`.

    Args:
        work: what was written.
        sweeps: whether it removes what nobody publishes; one of those of a `WriteParts` is enough.
    """

    def __init__(self, work: Work, *, sweeps: bool) -> None:
        self._work, self._sweeps = work, sweeps

    def setup(self) -> None:
        """See `beam.DoFn`."""
        self._staging = self._work.staging()

    def publish(self, committables: Sequence[Plain]) -> None:
        """See `Publisher`."""
        over = [each for each in committables if each["kind"] == "success"]
        parts = [each for each in committables if each["kind"] == "part"]
        files: dict[str, Staged] = {}
        for plain in (*parts, *(own for each in over for own in each["own"])):
            files[plain["staged"]] = PartFile.of(plain).staged
        self._staging.publish(list(files.values()))
        for each in sorted(over, key=lambda each: len(each["files"])):
            successes.put(self._staging, each)

    def sweep(self, job: str, step: int) -> None:
        """See `Publisher`."""
        if self._sweeps:
            self._staging.sweep(job, step)
