"""What all that write part files have in common: where and how; and what a file is, once it is staged.

Owns the public `Part`, and what of a file travels until it is published. Knows nothing of pipelines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from arcbeam.io.parts.formats import Format, Open
from arcbeam.io.parts.naming import Span, Template
from arcbeam.io.parts.packs import Pack, Roll
from arcbeam.io.parts.places import staging_for
from arcbeam.io.parts.staging import Staged, Staging, Writing
from arcbeam.model.attempts import Attempt

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
        step: in which it was staged.
        token: of the attempt that did.
        path: below which it is staged, and is published. A pipeline that goes on may write elsewhere.
    """

    staged: Staged
    span: Span
    destination: str
    shard: tuple[int, ...]
    part: int
    records: int
    step: int
    token: str
    path: str = ""

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
            "step": self.step,
            "token": self.token,
            "path": self.path,
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
        )


@dataclass(frozen=True)
class Work:
    """What is to be written, and where: the same for all that take part.

    Attributes:
        path: a folder or URL.
        format: of the files.
        template: of their names.
        roll: see `Roll`.
        options: the pipeline's, those of Beam's file systems.
        overwrite: whether another job's files may be replaced.
    """

    path: str
    format: Format
    template: Template
    roll: Roll
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    overwrite: bool = False

    def staging(self, path: str = "") -> Staging:
        """What stages and publishes below the path, or another of a time before."""
        return staging_for(path or self.path, self.options)

    def name(self, span: Span, destination: str, shard: tuple[int, ...], part: int) -> str:
        """Of a file, below the path."""
        return self.template.name(span, destination, shard, part, self.format.suffix)

    def part(self, file: PartFile) -> Part:
        """As users see it."""
        path = f"{(file.path or self.path).rstrip('/')}/{file.staged.name}"
        return Part(path, str(file.span), file.destination, file.shard, file.part, file.records, file.staged.size)


class PartWriter:
    """A part file that is being written, until it is staged.

    Attributes:
        records: in it so far.
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
        self._attempt, self._path = attempt, work.path
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
        return PartFile(staged, *self._of, self.records, self._attempt.step, self._attempt.token, self._path)

    def abandon(self) -> None:
        """It is not wanted."""
        self._writing.abandon()
