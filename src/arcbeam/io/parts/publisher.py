"""Who publishes part files, and what says that a window is over.

Owns the order among the two, whose staging does it, and that it is noted whose the names below a path are. A pipeline
that goes on may have another path than it had: what was staged below the one before is published there.

Bounded pipelines may be run again. For each window and destination `.arcbeam/files/<hash>.json` has what was published
last, and what is there from before; who writes, names files by the same template and with the same suffix has the same
list. It is written before anything of it is published, so whatever dies when: each file that was ever published is in
it. What is there from before goes when all is published that takes its place.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from arcbeam.io.parts import successes
from arcbeam.io.parts.naming import STAGING, check_name
from arcbeam.io.parts.staging import Staged, Staging, told_by
from arcbeam.io.parts.work import Names, PartFile, Plain, Work, check_owner, mark_of
from arcbeam.io.publishing import Publisher

_FOLDER: Final = f"{STAGING}/files"


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
        files: dict[tuple[str, Names], dict[str, Staged]] = defaultdict(dict)
        for plain in (*parts, *(own for each in over for own in each["own"])):
            file = PartFile.of(plain)
            files[file.path, file.names][file.staged.staged] = file.staged
        replacing = [made for each in over if (made := Replacing.of(self._work, each)) is not None]
        self._for_each(Replacing.begin, replacing)
        for (path, names), staged in files.items():
            staging = self._staging(path)
            staging.again = self.again
            # Of one micro-batch, and so of one job. What has no micro-batch is a bounded pipeline's.
            job, micro_batch = max(filter(None, map(told_by, staged)), default=("", 0))
            if micro_batch:
                _claim(self._work, staging, names if any(names) else self._work.names, job, micro_batch)
            staging.publish(list(staged.values()))
        self._for_each(Replacing.end, replacing)
        for each in sorted(over, key=lambda each: len(each["files"])):
            if each["name"]:
                successes.put(self._staging(each.get("path", "")), each)

    def _for_each(self, what: Callable[[Replacing, Staging], None], of: Iterable[Replacing]) -> None:
        """Does something with each, as many at once as the place bears."""
        made = [(each, self._staging(each.path)) for each in of]
        with ThreadPoolExecutor(min([staging.at_once for _, staging in made], default=1)) as pool:
            for _ in pool.map(lambda each: what(*each), made):
                pass

    def sweep(self, job: str, micro_batch: int) -> None:
        """See `Publisher`. Below another path, as far as something was published there in this process."""
        for path, staging in self._stagings.items():
            # Of a path that is the pipeline's no longer this may be the only one that knows.
            if self._sweeps or path != self._work.path:
                staging.sweep(job, micro_batch)


def _claim(work: Work, staging: Staging, names: Names, job: str, micro_batch: int) -> None:
    """Notes that a job gives the names, if that is not known yet.

    Args:
        work: what it writes.
        staging: where.
        names: that it gives.
        job: its name.
        micro_batch: in which it has staged what is published now.

    Raises:
        PathTakenError: see `check_owner`.
    """
    if not check_owner(work, staging, names, job, is_committed=True):
        said = {"job": job, "names": names[0], "suffix": names[1]}
        # Calls of a publisher run beside each other: each has its own on the way. What is left of one is swept.
        staging.put(
            mark_of(names), json.dumps(said).encode(), f"{STAGING}/{job}/{micro_batch}-owner-{uuid.uuid4().hex}"
        )


@dataclass(frozen=True, slots=True)
class Replacing:
    """That a run's files of a window and destination take the place of those of earlier runs.

    Args:
        name: of the list.
        staged: where it is on its way.
        job: that publishes.
        names: of its files.
        path: below which all of that is.
    """

    name: str
    staged: str
    job: str
    names: frozenset[str]
    path: str

    @staticmethod
    def of(work: Work, success: Mapping[str, Any]) -> Replacing | None:
        """By what brings the files of a window and destination; None: they come in a streaming job, which are never run
        again.
        """
        files: list[Plain] = success["own"]
        if not files or any(file["step"] for file in files):
            return None
        told = [*work.names, files[0]["span"], files[0]["destination"]]
        mark = hashlib.sha256(json.dumps(told).encode()).hexdigest()[:32]
        names = frozenset(file["name"] for file in files)
        return Replacing(f"{_FOLDER}/{mark}.json", success["staged"], success["job"], names, files[0]["path"])

    def begin(self, staging: Staging) -> None:
        """Says what will be published, and keeps what was: before the first of it is published."""
        names, before = self._read(staging)
        rest = (names | before) - self.names
        if (names, before) != (self.names, rest):
            self._write(staging, rest)

    def end(self, staging: Staging) -> None:
        """Removes what is there from before: when all is published."""
        names, before = self._read(staging)
        # Somebody who has come since has a list of his own, and what is in it is not to be touched.
        if names == self.names and before:
            staging.delete(sorted(before))
            self._write(staging, frozenset())

    def _read(self, staging: Staging) -> tuple[frozenset[str], frozenset[str]]:
        data = staging.get(self.name)
        if data is None:
            return frozenset(), frozenset()
        try:
            said = json.loads(data)
            listed = [frozenset(check_name(each, "it") for each in said[key]) for key in ("files", "before")]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{staging.full(self.name)} is no list of what earlier runs have published ({error!r}): "
                "remove it, and those of their files that are not written again"
            ) from error
        return listed[0], listed[1]

    def _write(self, staging: Staging, before: frozenset[str]) -> None:
        said = {"job": self.job, "files": sorted(self.names), "before": sorted(before)}
        staging.put(self.name, (json.dumps(said, ensure_ascii=False) + "\n").encode(), self.staged)
