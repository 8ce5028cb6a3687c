"""Bounded pipelines that are run again: what earlier runs have published, and this one does not, is removed.

Owns the lists that runs have of what they publish: for each window and destination `.arcbeam/files/<hash>.json` below
the path, with what was published last, and what is there from before. Who writes, names files by the same template and
with the same suffix has the same list. It is written before anything of it is published, so whatever dies when: each
file that was ever published is in it. What is there from before goes when all is published that takes its place.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from arcbeam.io.parts.naming import STAGING, check_name
from arcbeam.io.parts.staging import Staging
from arcbeam.io.parts.work import Plain, Work

_FOLDER: Final = f"{STAGING}/files"


@dataclass(frozen=True, slots=True)
class Replacing:
    """That a run's files of a window and destination take the place of those of earlier runs.

    Args:
        name: of the list.
        staged: where it is on its way.
        job: that publishes.
        names: of its files.
    """

    name: str
    staged: str
    job: str
    names: frozenset[str]

    @staticmethod
    def of(work: Work, success: Mapping[str, Any]) -> Replacing | None:
        """By what brings the files of a window and destination; None: they come in steps, which are never run again."""
        files: list[Plain] = success["own"]
        if not files or any(file["step"] for file in files):
            return None
        told = [work.template.text, work.format.suffix, files[0]["span"], files[0]["destination"]]
        mark = hashlib.sha256(json.dumps(told).encode()).hexdigest()[:32]
        names = frozenset(file["name"] for file in files)
        return Replacing(f"{_FOLDER}/{mark}.json", success["staged"], success["job"], names)

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


def for_each(staging: Staging, what: Callable[[Replacing, Staging], None], of: Iterable[Replacing]) -> None:
    """Does something with each, as many at once as the place bears."""
    with ThreadPoolExecutor(staging.at_once) as pool:
        for _ in pool.map(lambda each: what(each, staging), of):
            pass
