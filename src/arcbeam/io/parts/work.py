"""What all DoFns that write part files share: the description of the work, and staged part files.

Owns the public `StagedPart`, the committable of a file, and the check of which job owns names. Must not know pipelines.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from arcbeam import documents
from arcbeam.io.parts.formats import Format, Open
from arcbeam.io.parts.naming import STAGING, Span, Template
from arcbeam.io.parts.packs import Pack, Roll
from arcbeam.io.parts.places import opened
from arcbeam.io.parts.staging import Staged, Staging, Writing
from arcbeam.model.attempts import Attempt

Names = tuple[str, str]
"""A template's text, and a suffix. Writers with the same two create the same names."""
Plain = dict[str, Any]
"""A committable: the form of `PartFile` and of a success file in a manifest."""


class StagedPart(NamedTuple):
    """A part file that is staged. It is published after the commit, so it is perhaps not visible yet.

    Attributes:
        path: the path under which it is published.
        window: the window of its records: "start/end" in UTC, or "global".
        destination: the destination of its records; "" without destinations.
        shard: its shard of destination and window.
        part: its number in the shard, from 0.
        records: number of records.
        bytes: size of the file.
    """

    path: str
    window: str
    destination: str
    shard: tuple[int, ...]
    part: int
    records: int
    bytes: int


VERSION: Final = 1
"""Of all that part files store: committables, success files, and the records of owners and of earlier runs."""


@dataclass(frozen=True, slots=True)
class PartFile:
    """A part file until it is published.

    Attributes:
        staged: its staged file, and the name under which it is published.
        span: the window.
        destination: see `StagedPart`.
        shard: see `StagedPart`; while the file has no name, the place of the task that wrote it.
        part: see `StagedPart`.
        records: number of records.
        micro_batch: the micro-batch that staged it.
        token: token of the attempt that staged it.
        path: the path below which it is staged and published. A restored pipeline may write to another path.
        names: the template and suffix of its name. A restored pipeline may have others.
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
        """Return the committable."""
        return {
            "kind": "part",
            "version": VERSION,
            **self.staged.plain(),
            "span": list(self.span.plain()),
            "destination": self.destination,
            "shard": list(self.shard),
            "part": self.part,
            "records": self.records,
            "micro_batch": self.micro_batch,
            "token": self.token,
            "path": self.path,
            "names": list(self.names),
        }

    @staticmethod
    def of(plain: Mapping[str, Any]) -> PartFile:
        """Read a committable."""
        plain = documents.checked(plain, VERSION, "a part file")
        return PartFile(
            Staged(plain["staged"], plain["size"], plain["name"], plain["upload"]),
            Span(*plain["span"]),
            plain["destination"],
            tuple(plain["shard"]),
            plain["part"],
            plain["records"],
            plain["micro_batch"],
            plain["token"],
            plain["path"],
            tuple(plain["names"]),
        )


@dataclass(frozen=True)
class Work:
    """What is written, and where. All DoFns that take part share it.

    Attributes:
        path: a folder or URL.
        format: the format of the files.
        template: the template of their names.
        roll: see `Roll`.
        options: the pipeline's options for Beam's file systems, without secrets.
        secrets: names of the options that are secret. A process that has the job's secrets knows their values.
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
        """The names that it creates."""
        return self.template.text, self.format.suffix

    def staging(self, path: str = "") -> Staging:
        """Return the staging for the path, or for an earlier path of the pipeline."""
        return opened(path or self.path, self.options, self.secrets)

    def name(self, span: Span, destination: str, shard: tuple[int, ...], part: int) -> str:
        """Return the name of a file, below the path."""
        return self.template.name(span, destination, shard, part, self.format.suffix)

    def part(self, file: PartFile) -> StagedPart:
        """Return a file as users see it."""
        path = f"{(file.path or self.path).rstrip('/')}/{file.staged.name}"
        return StagedPart(path, str(file.span), file.destination, file.shard, file.part, file.records, file.staged.size)


class PathTakenError(RuntimeError):
    """Another job owns the names that this job would create.

    Names contain numbers of parts, which are kept in the state. A new job counts from zero and would replace another
    job's files, micro-batch by micro-batch. A job that is resumed, or restored from a savepoint, is the same job.
    Bounded pipelines have no micro-batches and replace their own files, so they are not checked.
    """


def mark_of(names: Names) -> str:
    """Return the name, below the path, of the file that records which job owns the names."""
    digest = hashlib.sha256("\0".join(names).encode()).hexdigest()
    return f"{STAGING}/owner-{digest[:12]}.json"


def check_owner(work: Work, staging: Staging, names: Names, job: str, *, is_committed: bool) -> bool:
    """Return whether the job is recorded as owner of the names; False: no owner, or one that may be overwritten.

    Args:
        work: what the job writes.
        staging: the staging for the path.
        names: the names that the job creates.
        job: the job's id.
        is_committed: whether the files are in a commit. Then they keep these names, even if the pipeline has changed.

    Raises:
        PathTakenError: another job owns the names, and must not be overwritten.
    """
    mark = staging.get(mark_of(names))
    if mark is None:
        return False
    owner = documents.decode(mark, VERSION, "a record of the owner of files")["job"]
    if owner == job:
        return True
    if work.overwrite:
        return False
    other = (
        f"These file names of job {job} are already committed, so another path or name cannot help"
        if is_committed
        else "Use another path or name; or resume that job with its --checkpoint_dir"
    )
    raise PathTakenError(
        f"WriteParts into {staging.path}: job {owner} has written files there that are named {names[0]!r}, and job "
        f"{job} would replace them one by one. {other}. To replace the files of job {owner}, use "
        f"WriteParts(overwrite=True), or remove them and {staging.full(mark_of(names))}"
    )


class PartWriter:
    """A part file while it is being written.

    Attributes:
        records: number of records so far.

    Raises:
        PathTakenError: another job owns the names.
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
        if attempt.micro_batch and attempt.job not in staging.checked:
            # Checked before the commit: committed files that cannot be published would block the job.
            check_owner(work, staging, work.names, attempt.job, is_committed=False)
            staging.checked.add(attempt.job)
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
        """Bytes of the records so far, before compression."""
        return self._open.taken

    @property
    def held(self) -> int:
        """Bytes in memory, approximately."""
        return self._open.held + self._writing.held

    def add_records(self, records: Sequence[Any]) -> None:
        """Append records."""
        self._open.add_records(records)
        self.records += len(records)

    def add_pack(self, pack: Pack) -> None:
        """Append records that the format has encoded."""
        self._open.add_pack(pack)
        self.records += len(pack)

    def finish(self) -> PartFile:
        """Complete the file, and stage it."""
        self._open.close()
        staged = replace(self._writing.finish(), name=self._name)
        by = self._attempt
        return PartFile(staged, *self._of, self.records, by.micro_batch, by.token, self._path, self._names)

    def abandon(self) -> None:
        """Discard the file."""
        self._writing.abandon()
