"""Who publishes part files, and what says that a window is over.

Owns the order among the two, and whose staging does it. A pipeline that goes on may have another path than it had: what
was staged below the one before is published there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from arcbeam.io.parts import successes
from arcbeam.io.parts.staging import Staged, Staging
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
        self._stagings = {self._work.path: self._work.staging()}

    def _staging(self, path: str) -> Staging:
        path = path or self._work.path
        if path not in self._stagings:
            self._stagings[path] = self._work.staging(path)
        return self._stagings[path]

    def publish(self, committables: Sequence[Plain]) -> None:
        """See `Publisher`."""
        over = [each for each in committables if each["kind"] == "success"]
        parts = [each for each in committables if each["kind"] == "part"]
        files: dict[str, dict[str, Staged]] = defaultdict(dict)
        for plain in (*parts, *(own for each in over for own in each["own"])):
            file = PartFile.of(plain)
            files[file.path][file.staged.staged] = file.staged
        for path, staged in files.items():
            self._staging(path).publish(list(staged.values()))
        for each in sorted(over, key=lambda each: len(each["files"])):
            successes.put(self._staging(each.get("path", "")), each)

    def sweep(self, job: str, step: int) -> None:
        """See `Publisher`. Below another path, as far as something was published there in this process."""
        for path, staging in self._stagings.items():
            # Of a path that is the pipeline's no longer this may be the only one that knows.
            if self._sweeps or path != self._work.path:
                staging.sweep(job, step)
