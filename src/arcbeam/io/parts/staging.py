"""Files on their way: staged where no reader looks, published under their names, or swept.

Owns what is kept of a staged file, and what a kind of file system must do. The kinds are `.local`, `.objects` (S3) and
`.filesystems` (all others that Beam knows); `.places` chooses. Knows nothing of records, windows and pipelines.

What is staged is below `<path>/.arcbeam/<job>/`, and its name begins with its micro-batch: that is the evidence by
which it is swept when the micro-batch is over, and by which leftovers of jobs that died are found.
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
"""In place of a job's name, on a runner that tells none."""
_UNIQUE: Final = uuid.uuid4().hex
_counter = itertools.count()


@dataclass(frozen=True, slots=True)
class Staged:
    """A file that is whole, and no reader sees yet.

    Attributes:
        staged: where it is, below the path.
        size: in bytes.
        name: under which it is published, below the path; "" while that is not known.
        upload: of an object store: what completes it.
    """

    staged: str
    size: int
    name: str = ""
    upload: dict[str, Any] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """As it is in a manifest."""
        return asdict(self)

    @staticmethod
    def of(plain: Mapping[str, Any]) -> Staged:
        """Reads it back."""
        return Staged(**plain)


@dataclass(frozen=True, slots=True)
class Leftover:
    """Something that was staged, and is not published.

    Attributes:
        job: whose.
        micro_batch: of the job.
        staged: where it is, below the path.
        size: in bytes; of an upload that is not complete, unknown: None.
        age: seconds since it was last written; of an upload, since it was begun.
        of: what of it is left, in words.
    """

    job: str
    micro_batch: int
    staged: str
    size: int | None
    age: float
    of: str = "file"


class Writing(ABC):
    """A file that is being staged.

    Attributes:
        size: bytes so far.
        held: those of them that are in memory, about.
    """

    size: int = 0
    held: int = 0

    @abstractmethod
    def write(self, data: bytes) -> None:
        """Adds to it."""

    @abstractmethod
    def finish(self) -> Staged:
        """It is whole, and durable."""

    @abstractmethod
    def abandon(self) -> None:
        """It is not wanted; whatever goes wrong here is left to the sweep."""


class Staging(ABC):
    """What a kind of file system does for part files below a path.

    Args:
        path: without a "/" at its end.

    Attributes:
        asked: jobs that stage here, and may.
    """

    names_first = False
    """Whether a file's name must be known when it is begun."""
    again = True
    """Whether what is published may have been published before."""
    at_once = 1
    """How many small files may be read and written at once."""

    def __init__(self, path: str) -> None:
        self.path, self.asked = path, set[str]()

    def full(self, name: str) -> str:
        """The path of something below it."""
        return f"{self.path}/{name}"

    @abstractmethod
    def begin(self, attempt: Attempt, name: str = "") -> Writing:
        """Begins a file of an attempt.

        Args:
            attempt: that stages it.
            name: under which it will be published, below the path; needed if `names_first`.
        """

    @abstractmethod
    def publish(self, files: Sequence[Staged]) -> None:
        """Brings staged files under their names, whatever was there. Those that are there already stay: idempotent."""

    def missing(self, staged: str, target: str) -> None:
        """A file can neither be published nor is.

        Raises:
            FileNotFoundError: and nobody can have published it before.
        """
        neither = f"neither what was staged ({staged}) nor what it was to become ({target}) is there"
        if not self.again:
            raise FileNotFoundError(
                f"{neither}: it was staged where this process does not see it, or somebody has removed it; "
                "on a cluster, write to a path that all hosts share"
            )
        warnings.warn(
            f"{neither}: if nobody has taken the file away after it was published, its records are lost", stacklevel=3
        )

    @abstractmethod
    def put(self, name: str, data: bytes, staged: str) -> None:
        """Writes a small file, whole, whatever was there.

        Args:
            name: of it, below the path.
            data: what is in it.
            staged: where it may be on its way, a name of `staged_name`, or one that begins with it.
        """

    @abstractmethod
    def get(self, name: str) -> bytes | None:
        """Reads a small file; None if there is none."""

    @abstractmethod
    def delete(self, names: Iterable[str]) -> None:
        """Removes files that are published. What is gone already is no error."""

    @abstractmethod
    def leftovers(self, job: str = "") -> Iterator[Leftover]:
        """What is staged and not published, of a job, or of all."""

    @abstractmethod
    def remove(self, leftovers: Iterable[Leftover]) -> None:
        """Removes what is left. What is gone already is no error."""

    def sweep(self, job: str, micro_batch: int) -> None:
        """Removes what a job has staged up to a micro-batch."""
        self.remove(each for each in self.leftovers(job or _NAMELESS) if each.micro_batch <= micro_batch)


def staged_name(attempt: Attempt) -> str:
    """A new name for something that an attempt stages, below the path."""
    token = attempt.token or _UNIQUE
    return f"{STAGING}/{attempt.job or _NAMELESS}/{attempt.micro_batch}-{token}-{next(_counter)}"


def told_by(staged: str) -> tuple[str, int] | None:
    """Job and micro-batch of what was staged under a name below the path; None if it is none of ours."""
    match staged.split("/"):
        case [folder, job, name] if folder == STAGING:
            micro_batch = name.partition("-")[0]
            return (job, int(micro_batch)) if micro_batch.isdigit() else None
    return None
