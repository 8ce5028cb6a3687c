"""Staged files: written where no reader looks, then published under their names, or swept.

Owns the record of a staged file, and the interface of a file system. Implementations are `.local`, `.objects` (S3) and
`.filesystems` (all others that Beam knows); `.places` selects one. Must not know records, windows and pipelines.

Staged files are below `<path>/.arcbeam/<job>/`, and their names begin with their micro-batch. By this name they are
swept after the micro-batch, and leftovers of dead jobs are found.
"""

from __future__ import annotations

import itertools
import uuid
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from arcbeam.io.parts.naming import STAGING
from arcbeam.model.attempts import Attempt

_NAMELESS: Final = "nameless"
"""Replaces a job's id, on runners that provide none."""
_UNIQUE: Final = uuid.uuid4().hex
_counter = itertools.count()


@dataclass(frozen=True, slots=True)
class Staged:
    """A complete file that no reader sees yet.

    Attributes:
        staged: its place, below the path.
        size: in bytes.
        name: the name under which it is published, below the path; "" while unknown.
        upload: on an object store: what completes the upload.
    """

    staged: str
    size: int
    name: str = ""
    upload: dict[str, Any] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """Return the form that is stored in a manifest."""
        return asdict(self)

    @staticmethod
    def of(plain: Mapping[str, Any]) -> Staged:
        """Read the form that is stored in a manifest."""
        return Staged(**plain)


@dataclass(frozen=True, slots=True)
class Leftover:
    """A staged file that is not published.

    Attributes:
        job: the id of the job that staged it.
        micro_batch: the job's micro-batch that staged it.
        staged: its place, below the path.
        size: in bytes; None: an incomplete upload, whose size is unknown.
        age: seconds since it was last written; for an upload, since it was started.
        of: what it is, in words.
    """

    job: str
    micro_batch: int
    staged: str
    size: int | None
    age: float
    of: str = "file"


class Writing(ABC):
    """A file while it is being staged.

    Attributes:
        size: bytes so far.
        held: bytes that are in memory, approximately.
    """

    size: int = 0
    held: int = 0

    @abstractmethod
    def write(self, data: bytes) -> None:
        """Append data."""

    @abstractmethod
    def finish(self) -> Staged:
        """Complete the file, and make it durable."""

    @abstractmethod
    def abandon(self) -> None:
        """Discard the file. Errors are ignored: the sweep removes what remains."""


class Staging(ABC):
    """The operations of a file system for part files below a path.

    Args:
        path: without a "/" at its end.

    Attributes:
        checked: ids of jobs that may stage here; see `check_owner`.
    """

    names_first = False
    """Whether a file's name must be known when it is started."""
    again = True
    """Whether the files to publish may have been published before."""
    at_once = 1
    """How many small files may be read and written concurrently."""

    def __init__(self, path: str) -> None:
        self.path, self.checked = path, set[str]()

    def full(self, name: str) -> str:
        """Return the full path of a name below the path."""
        return f"{self.path}/{name}"

    @abstractmethod
    def begin(self, attempt: Attempt, name: str = "") -> Writing:
        """Start a file of an attempt.

        Args:
            attempt: the attempt that stages the file.
            name: the name under which it will be published, below the path; required if `names_first`.
        """

    @abstractmethod
    def publish(self, files: Sequence[Staged]) -> None:
        """Move staged files to their names, and replace files there. Idempotent: published files stay."""

    def missing(self, staged: str, target: str) -> None:
        """Report a file that is neither staged nor published.

        Raises:
            FileNotFoundError: the file cannot have been published before.
        """
        neither = f"neither the staged file ({staged}) nor its published file ({target}) exists"
        if not self.again:
            raise FileNotFoundError(
                f"{neither}: it was staged where this process does not see it, or it was removed; on a cluster, write "
                "to a path that all hosts share"
            )
        warnings.warn(
            f"{neither}: unless the file was removed after it was published, its records are lost", stacklevel=3
        )

    @abstractmethod
    def put(self, name: str, data: bytes, staged: str) -> None:
        """Write a small file atomically, and replace an existing one.

        Args:
            name: its name, below the path.
            data: its content.
            staged: where to stage it: a name from `staged_name`, or one that begins with it.
        """

    @abstractmethod
    def get(self, name: str) -> bytes | None:
        """Read a small file; None if it does not exist."""

    @abstractmethod
    def delete(self, names: Iterable[str]) -> None:
        """Remove published files. A file that does not exist is not an error."""

    @abstractmethod
    def leftovers(self, job: str = "") -> Iterator[Leftover]:
        """Yield staged files that are not published, of one job or of all."""

    @abstractmethod
    def remove(self, leftovers: Iterable[Leftover]) -> None:
        """Remove leftovers. One that does not exist is not an error."""

    def sweep(self, job: str, micro_batch: int) -> None:
        """Remove what a job has staged up to a micro-batch."""
        self.remove(each for each in self.leftovers(job or _NAMELESS) if each.micro_batch <= micro_batch)


def staged_name(attempt: Attempt) -> str:
    """Return a new name, below the path, for something that an attempt stages."""
    token = attempt.token or _UNIQUE
    return f"{STAGING}/{attempt.job or _NAMELESS}/{attempt.micro_batch}-{token}-{next(_counter)}"


def origin_of(staged: str) -> tuple[str, int] | None:
    """Return job and micro-batch of a staged file from its name below the path; None if the name has another form."""
    match staged.split("/"):
        case [folder, job, name] if folder == STAGING:
            micro_batch = name.partition("-")[0]
            return (job, int(micro_batch)) if micro_batch.isdigit() else None
    return None
