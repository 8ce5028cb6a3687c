"""Publishes part files, and the files that report complete windows.

Owns the order between the two, the choice of the staging, and the record of which job owns the names below a path. A
restored pipeline may have another path than before. Files that were staged below the old path are published there.

Bounded pipelines may run again. For each window and destination, `.arcbeam/files/<hash>.json` lists the files that the
last run published, and files that remain from earlier runs. The hash covers template, suffix, window and destination.
The list is written before the first file is published, so it contains each file that was ever published, whichever
process dies when. Files of earlier runs are removed after all their replacements are published.
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

from typing_extensions import override

from arcbeam import documents
from arcbeam.io.parts import successes
from arcbeam.io.parts.naming import STAGING, check_name
from arcbeam.io.parts.staging import Staged, Staging, origin_of
from arcbeam.io.parts.work import VERSION, Names, PartFile, Plain, Work, check_owner, mark_of
from arcbeam.io.publishing import Publisher

_FOLDER: Final = f"{STAGING}/files"


class PublishParts(Publisher):
    """Publishes part files and success files.

    Args:
        work: what is written.
        sweeps: whether it removes unpublished files. One publisher of each `WriteParts` does.
    """

    def __init__(self, work: Work, *, sweeps: bool) -> None:
        self._work, self._sweeps = work, sweeps

    @override
    def setup(self) -> None:
        self._stagings = {self._work.path: self._work.staging()}

    def _staging(self, path: str) -> Staging:
        path = path or self._work.path
        if path not in self._stagings:
            self._stagings[path] = self._work.staging(path)
        return self._stagings[path]

    @override
    def publish(self, committables: Sequence[Plain]) -> None:
        over = [
            documents.checked(each, VERSION, "a success file") for each in committables if each["kind"] == "success"
        ]
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
            # All are of one micro-batch, and so of one job. Without a micro-batch they are of a bounded pipeline.
            job, micro_batch = max(filter(None, map(origin_of, staged)), default=("", 0))
            if micro_batch:
                _claim(self._work, staging, names if any(names) else self._work.names, job, micro_batch)
            staging.publish(list(staged.values()))
        self._for_each(Replacing.end, replacing)
        for each in sorted(over, key=lambda each: len(each["files"])):
            if each["name"]:
                successes.put(self._staging(each["path"]), each)

    def _for_each(self, what: Callable[[Replacing, Staging], None], of: Iterable[Replacing]) -> None:
        """Call a function for each list, concurrently as far as the storage allows."""
        made = [(each, self._staging(each.path)) for each in of]
        with ThreadPoolExecutor(min([staging.at_once for _, staging in made], default=1)) as pool:
            for _ in pool.map(lambda each: what(*each), made):
                pass

    def sweep(self, job: str, micro_batch: int) -> None:
        """See `Publisher`. Other paths are swept if this process has published below them."""
        for path, staging in self._stagings.items():
            # A path that the pipeline no longer uses may be known to this publisher only.
            if self._sweeps or path != self._work.path:
                staging.sweep(job, micro_batch)


def _claim(work: Work, staging: Staging, names: Names, job: str, micro_batch: int) -> None:
    """Record that a job owns names, unless this is recorded already.

    Args:
        work: what the job writes.
        staging: the staging for the path.
        names: the names that the job creates.
        job: the job's id.
        micro_batch: the micro-batch that has staged the files.

    Raises:
        PathTakenError: see `check_owner`.
    """
    if not check_owner(work, staging, names, job, is_committed=True):
        content = documents.encode(VERSION, {"job": job, "names": names[0], "suffix": names[1]})
        # Calls of a publisher run concurrently, so each stages a file of its own. The sweep removes leftovers.
        staging.put(mark_of(names), content, f"{STAGING}/{job}/{micro_batch}-owner-{uuid.uuid4().hex}")


@dataclass(frozen=True, slots=True)
class Replacing:
    """The replacement of files of earlier runs by a run's files of the same window and destination.

    Args:
        name: the name of the list.
        staged: the name under which the list is staged.
        job: the publishing job.
        names: the names of the run's files.
        path: the path below which all of these are.
    """

    name: str
    staged: str
    job: str
    names: frozenset[str]
    path: str

    @staticmethod
    def of(work: Work, success: Mapping[str, Any]) -> Replacing | None:
        """Return the replacement for a success committable; None in streaming, where jobs are not run again."""
        files: list[Plain] = success["own"]
        if not files or any(file["micro_batch"] for file in files):
            return None
        identity = [*work.names, files[0]["span"], files[0]["destination"]]
        mark = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]
        names = frozenset(file["name"] for file in files)
        return Replacing(f"{_FOLDER}/{mark}.json", success["staged"], success["job"], names, files[0]["path"])

    def begin(self, staging: Staging) -> None:
        """Write the list of the files to publish and those from before, prior to publishing the first one."""
        names, before = self._read(staging)
        rest = (names | before) - self.names
        if (names, before) != (self.names, rest):
            self._write(staging, rest)

    def end(self, staging: Staging) -> None:
        """Remove the files of earlier runs, after all are published."""
        names, before = self._read(staging)
        # A run that has started since has its own list. The files in it must stay.
        if names == self.names and before:
            staging.delete(sorted(before))
            self._write(staging, frozenset())

    def _read(self, staging: Staging) -> tuple[frozenset[str], frozenset[str]]:
        data = staging.get(self.name)
        if data is None:
            return frozenset(), frozenset()
        try:
            content = documents.decode(data, VERSION, "a list of published files")
            listed = [frozenset(check_name(each, "a file") for each in content[key]) for key in ("files", "before")]
        except documents.NewerDocumentError:
            raise
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{staging.full(self.name)} is not a valid list of the files that earlier runs have published "
                f"({error!r}): remove it, and those files of earlier runs that are not written again"
            ) from error
        return listed[0], listed[1]

    def _write(self, staging: Staging, before: frozenset[str]) -> None:
        content = {"job": self.job, "files": sorted(self.names), "before": sorted(before)}
        staging.put(self.name, documents.encode(VERSION, content), self.staged)
