"""What all that write part files have in common: where and how; and what a file is, once it is staged.

Owns the public `Part`, what of a file travels until it is published, and whose names are. Knows nothing of pipelines.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from arcbeam.errors import SetupError
from arcbeam.io.parts.formats import Format, Open
from arcbeam.io.parts.naming import STAGING, Span, Template
from arcbeam.io.parts.packs import Pack, Roll
from arcbeam.io.parts.places import staging_for
from arcbeam.io.parts.staging import Staged, Staging, Writing
from arcbeam.model.attempts import Attempt
from arcbeam.secrets import how_to_give, installed

Names = tuple[str, str]
"""A template's text, and a suffix: who has the same gives the same names."""
Plain = dict[str, Any]
"""A committable: what `PartFile` and `Success` are in a manifest."""


class Part(NamedTuple):
    """A part file that is staged: published with the commit, not yet when it is seen.

    Attributes:
        path: under which it is published.
        window: whose records it has: "start/end" in UTC, or "global".
        destination: of its records; "" if there are none.
        shard: of its destination and window.
        part: its number in the shard, from 0.
        records: in it.
        bytes: of the file.
    """

    path: str
    window: str
    destination: str
    shard: tuple[int, ...]
    part: int
    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class PartFile:
    """A part file on its way.

    Attributes:
        staged: where it is, and under which name it is published.
        span: the window.
        destination: see `Part`.
        shard: see `Part`; of who wrote it, while it has no name.
        part: see `Part`.
        records: in it.
        micro_batch: in which it was staged.
        token: of the attempt that did.
        path: below which it is staged, and is published. A pipeline that goes on may write elsewhere.
        names: template and suffix, by which it has its own; a pipeline that goes on may have others.
    """

    staged: Staged
    span: Span
    destination: str
    shard: tuple[int, ...]
    part: int
    records: int
    micro_batch: int
    token: str
    path: str = ""
    names: Names = ("", "")

    def plain(self) -> Plain:
        """As a committable."""
        return {
            "kind": "part",
            **self.staged.plain(),
            "span": list(self.span.plain()),
            "destination": self.destination,
            "shard": list(self.shard),
            "part": self.part,
            "records": self.records,
            "step": self.micro_batch,
            "token": self.token,
            "path": self.path,
            "names": list(self.names),
        }

    @staticmethod
    def of(plain: Mapping[str, Any]) -> PartFile:
        """Reads it back."""
        return PartFile(
            Staged(plain["staged"], plain["size"], plain["name"], plain["upload"]),
            Span(*plain["span"]),
            plain["destination"],
            tuple(plain["shard"]),
            plain["part"],
            plain["records"],
            plain["step"],
            plain["token"],
            plain.get("path", ""),
            tuple(plain.get("names", ("", ""))),
        )


@dataclass(frozen=True)
class Work:
    """What is to be written, and where: the same for all that take part.

    Attributes:
        path: a folder or URL.
        format: of the files.
        template: of their names.
        roll: see `Roll`.
        options: the pipeline's, those of Beam's file systems, without secrets.
        secrets: the names of those options that are secret: a process that has the job's secrets knows their values.
        overwrite: whether another job's files may be replaced.
    """

    path: str
    format: Format
    template: Template
    roll: Roll
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    overwrite: bool = False
    secrets: tuple[str, ...] = ()

    @property
    def names(self) -> Names:
        """That it gives."""
        return self.template.text, self.format.suffix

    def staging(self, path: str = "") -> Staging:
        """What stages and publishes below the path, or another of a time before."""
        known = {name: installed(name) for name in self.secrets}
        if missing := sorted(name for name, value in known.items() if value is None):
            raise SetupError(
                f"the files in {self.path} cannot be reached without the secret of {missing[0]}", how_to_give(missing)
            )
        return staging_for(path or self.path, {**self.options, **known})

    def name(self, span: Span, destination: str, shard: tuple[int, ...], part: int) -> str:
        """Of a file, below the path."""
        return self.template.name(span, destination, shard, part, self.format.suffix)

    def part(self, file: PartFile) -> Part:
        """As users see it."""
        path = f"{(file.path or self.path).rstrip('/')}/{file.staged.name}"
        return Part(path, str(file.span), file.destination, file.shard, file.part, file.records, file.staged.size)


class PathTakenError(RuntimeError):
    """Another job gives the names that this one would give.

    Names number the parts of a state, so a job that begins anew gives them again, from the first: micro-batch by
    micro-batch it would put its files in the place of another's. One that goes on, or back to a savepoint, is the same
    job. Bounded pipelines have no micro-batches, replace what they wrote, and are not asked.
    """


def mark_of(names: Names) -> str:
    """Below a path, where it is said whose the names are."""
    told = hashlib.sha256("\0".join(names).encode()).hexdigest()
    return f"{STAGING}/owner-{told[:12]}.json"


def check_owner(work: Work, staging: Staging, names: Names, job: str, *, is_committed: bool) -> bool:
    """Whether a job is known to give the names; False: none is.

    Args:
        work: what it writes.
        staging: where.
        names: that it gives.
        job: its name.
        is_committed: what is to have the names is in a commit: they are its names, whatever the pipeline now says.

    Raises:
        PathTakenError: another one does, and is not to be overwritten.
    """
    mark = staging.get(mark_of(names))
    if mark is None:
        return False
    owner = json.loads(mark)["job"]
    if owner == job:
        return True
    if work.overwrite:
        return False
    other = (
        "What it has committed has these names for good"
        if is_committed
        else "Give it another path or name; or go on with that job, by its --checkpoint_dir"
    )
    raise PathTakenError(
        f"WriteParts into {staging.path}: the job {owner} has written files there that are named {names[0]!r}, and the "
        f"job {job} would replace them one by one. {other}; or, if that job's files are to be replaced, say "
        f"WriteParts(overwrite=True), or remove them and {staging.full(mark_of(names))}"
    )


class PartWriter:
    """A part file that is being written, until it is staged.

    Attributes:
        records: in it so far.

    Raises:
        PathTakenError: the names are another job's.
    """

    def __init__(
        self,
        work: Work,
        staging: Staging,
        attempt: Attempt,
        span: Span,
        destination: str,
        shard: tuple[int, ...],
        part: int,
        *,
        named: bool,
    ) -> None:
        self._of = (span, destination, shard, part)
        self._attempt, self._path, self._names = attempt, work.path, work.names
        if attempt.micro_batch and attempt.job not in staging.asked:
            # Said before anything is committed that nobody may publish.
            check_owner(work, staging, work.names, attempt.job, is_committed=False)
            staging.asked.add(attempt.job)
        self._name = work.name(span, destination, shard, part) if named else ""
        self._writing: Writing = staging.begin(attempt, self._name)
        self.records = 0
        try:
            self._open: Open = work.format.open(self._writing.write)
        except BaseException:
            self.abandon()
            raise

    @property
    def taken(self) -> int:
        """Bytes of the records so far, before they are compressed."""
        return self._open.taken

    @property
    def held(self) -> int:
        """Bytes that it has in memory, about."""
        return self._open.held + self._writing.held

    def add_records(self, records: Sequence[Any]) -> None:
        """Adds records."""
        self._open.add_records(records)
        self.records += len(records)

    def add_pack(self, pack: Pack) -> None:
        """Adds records as the format has encoded them."""
        self._open.add_pack(pack)
        self.records += len(pack)

    def finish(self) -> PartFile:
        """It is staged."""
        self._open.close()
        staged = self._writing.finish()
        if self._name and not staged.name:
            staged = Staged(staged.staged, staged.size, self._name, staged.upload)
        by = self._attempt
        return PartFile(staged, *self._of, self.records, by.micro_batch, by.token, self._path, self._names)

    def abandon(self) -> None:
        """It is not wanted."""
        self._writing.abandon()
