"""A job's temporary location: the one place that its driver and all its tasks can reach.

Owns names below the location and the records of user errors. Must not know the content of files, Beam, or Spark.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from arcbeam import secrets as known
from arcbeam.sizes import threshold
from arcbeam.store.blobs.backends import below, open_blobs, shown
from arcbeam.store.blobs.errors import LostFileError, MissingFileError, StoreError
from arcbeam.store.blobs.private import NotOursError
from arcbeam.store.jobtemp.jobblobs import JobBlobs, LocalBlobs, RemoteBlobs, cache_folder

_LOG = logging.getLogger("arcbeam.store")

_PART_BYTES = threshold(8 << 20, 1 << 16)
_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")


class JobLocation:
    """The temporary location of one job. Pickles; a copy in another process reaches the same files.

    Everything in it belongs to the job: `delete_all` removes it. Files are immutable. Each has a name that no other
    writer uses.

    Args:
        url: a local path or `file://` URL (all processes see the same folder), or a URL that `backends` supports:
            `s3://`, `gs://`, `abfs://`, `hdfs://`, ….
        cache: local folder for copies of remote files on each host; the system's temporary folder if empty.
        secrets: of the job, by name (`arcbeam.secrets`): a copy in another process registers them there.
        blobs: an open backend to use instead of that of `url`; such a location does not pickle.

    Attributes:
        url: the location; a local one as an absolute path. It may contain credentials.
        secrets: of the job.

    Raises:
        StoreError: by every method, with the name that could not be read or written.
    """

    def __init__(
        self, url: str, *, cache: str = "", secrets: Mapping[str, str] | None = None, blobs: JobBlobs | None = None
    ) -> None:
        if not _SCHEME.match(url):
            url = os.path.abspath(url)
        elif url.startswith("file://"):
            url = os.path.abspath(unquote(urlsplit(url).path))
        self.url = url
        self._cache = cache
        self.secrets = dict(secrets or {})
        self._opened = blobs
        self._given = blobs is not None

    @classmethod
    def under(cls, root: str, job: str, *, cache: str = "", secrets: Mapping[str, str] | None = None) -> JobLocation:
        """Return the location of a job below a folder or URL for many jobs."""
        return cls(below(root, job), cache=cache, secrets=secrets)

    def below(self, name: str) -> str:
        """Return the URL of a folder in this location."""
        return below(self.url, name)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._given:
            raise TypeError("a location with a given backend does not pickle")
        return (_located, (self.url, self._cache, self.secrets))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JobLocation) and other.url == self.url

    def __hash__(self) -> int:
        return hash(self.url)

    def __str__(self) -> str:
        """Return the URL without a user's name and secret, for people."""
        return shown(self.url)

    def __repr__(self) -> str:
        return f"JobLocation({str(self)!r})"

    @property
    def folder(self) -> Path | None:
        """The folder of a local location; None for all others."""
        return None if self._given or _SCHEME.match(self.url) else Path(self.url)

    @property
    def _blobs(self) -> JobBlobs:
        if self._opened is None:
            if not _SCHEME.match(self.url):
                self._opened = LocalBlobs(Path(self.url))
            else:
                try:
                    opened = open_blobs(self.url)
                except StoreError as e:
                    raise StoreError(
                        f"the temporary location '{self}' cannot be opened: {e.message}",
                        f"give one that all hosts can reach; {e.remedy}",
                    ) from e
                self._opened = RemoteBlobs(opened, cache_folder(known.without_credentials(self.url), self._cache))
        return self._opened

    def put_file(self, local_path: Path | str, name: str) -> None:
        """Publish a complete local file under `name`, and move it: it is gone afterwards. All or nothing."""
        try:
            self._blobs.take_file(Path(local_path), _checked(name))
        except (OSError, StoreError) as e:
            raise self._failed("written", name, e) from e

    def put_bytes(self, name: str, data: bytes) -> None:
        """Publish bytes under `name`. All or nothing."""
        try:
            self._blobs.put(_checked(name), data)
        except (OSError, StoreError) as e:
            raise self._failed("written", name, e) from e

    def get_bytes(self, name: str) -> bytes:
        """Return all bytes of `name`."""
        try:
            return self._blobs.get(_checked(name))
        except (OSError, StoreError) as e:
            raise self._failed("read", name, e) from e

    @contextlib.contextmanager
    def reader(self, name: str) -> Iterator[Callable[[int], bytes]]:
        """Read `name` from its beginning. The yielded function reads a number of bytes, fewer at the file's end."""
        try:
            stream = self._blobs.open(_checked(name))
        except (OSError, StoreError) as e:
            raise self._failed("read", name, e) from e

        def read(size: int) -> bytes:
            try:
                if size <= _PART_BYTES:
                    return bytes(stream.read(size))
                # A damaged file may request more than fits into memory: never allocate more than the file has.
                parts = []
                while size and (part := stream.read(min(size, _PART_BYTES))):
                    parts.append(part)
                    size -= len(part)
                return b"".join(parts)
            except (OSError, StoreError) as e:
                raise self._failed("read", name, e) from e

        with stream:
            yield read

    def local_copy(self, name: str) -> Path:
        """Return a local, read-only path of `name`: the file itself in a local location, else this host's only copy."""
        try:
            return self._blobs.local_copy(_checked(name))
        except (OSError, StoreError) as e:
            raise self._failed("read", name, e) from e

    def exists(self, name: str) -> bool:
        """Return whether `name` was published."""
        try:
            return self._blobs.exists(_checked(name))
        except (OSError, StoreError) as e:
            raise self._failed("read", name, e) from e

    def scratch_file(self) -> Path:
        """Return a new local path for a file that will be given to `put_file` or removed."""
        return self.scratch() / uuid.uuid4().hex

    def scratch(self) -> Path:
        """Return this host's folder for unfinished files of the job; it is removed with the job's temporary files."""
        try:
            return self._blobs.scratch()
        except (OSError, StoreError) as e:
            raise self._failed("written", "scratch", e) from e

    def delete_all(self) -> None:
        """Remove the whole location and this host's copies. Best effort: failures are logged, not raised."""
        try:
            self._blobs.delete_all()
        except (OSError, StoreError) as e:
            _LOG.warning("the temporary location '%s' could not be removed: %s", self, e)

    def record_error(self, stage: str, payload: bytes) -> None:
        """Store the record of an error in user code for the driver and retried tasks.

        Args:
            stage: id of the stage that failed.
            payload: opaque.
        """
        self.put_bytes(f"errors/{time.time_ns():020d}-{_plain(stage)}-{uuid.uuid4().hex}", payload)

    def errors(self, stage: str = "") -> list[bytes]:
        """Return all records of errors, earliest first by the clocks of their hosts. Without any: one listing.

        Args:
            stage: only those of this stage.
        """
        return [self.get_bytes(name) for name in self.error_names(stage)]

    def error_names(self, stage: str = "") -> list[str]:
        """Return the names of these records."""
        of = f"-{_plain(stage)}-" if stage else ""
        return [name for name in self.list("errors/") if of in name]

    def list(self, prefix: str = "") -> list[str]:
        """Return all names that start with `prefix`, sorted; empty if nothing was ever written."""
        try:
            return self._blobs.names(prefix)
        except (OSError, StoreError) as e:
            raise self._failed("listed", prefix, e) from e

    def _failed(self, verb: str, name: str, error: OSError | StoreError) -> StoreError:
        if isinstance(error, MissingFileError) and verb == "read":
            return LostFileError(
                f"'{name}' is missing in the temporary location '{self}'",
                "on a cluster, --arcbeam_temp must be a folder or URL that the driver and every executor can reach",
            )
        if isinstance(error, NotOursError):
            return StoreError(
                f"'{name}' cannot be {verb} in the temporary location '{self}': {error.strerror}",
                "files of a job are used only where no other user can have put them: run driver and executors as one "
                "user, or share the folder with a group (chmod g+rwxs)",
            )
        why = str(error if isinstance(error, OSError) else error.__cause__ or error.message).split("\n", 1)[0]
        return StoreError(
            f"'{name}' cannot be {verb} in the temporary location '{self}': {why}",
            "check that every host can reach the location and write to it, and that it has free space",
        )


def _located(url: str, cache: str, secrets: Mapping[str, str]) -> JobLocation:
    known.install(secrets)
    return JobLocation(url, cache=cache, secrets=secrets)


def _checked(name: str) -> str:
    """Return the name if it is valid below the location: a check for bugs in arcbeam."""
    if not name or any(not part or part.startswith(".") for part in name.split("/")):
        raise ValueError(f"not a name in a location: {name!r}")
    return name


def _plain(stage: str) -> str:
    """Return a stage's id as part of a name."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", stage)
