"""Job graphs in a job's folder: what a driver needs to resume a job without the script that began it.

Owns storing them, before a manifest names them, and reading them whole. Their names contain a digest of their content
and the epoch of the driver that stored them; they never change. A driver with the same job graph finds all of it there.

SUBTLE: why the epoch? A driver names what it has stored itself, and the files of the job graph of the manifest that it
follows. The former has its epoch, and no sweep touches it before a later driver has opened the job. The head of a
driver that may be sweeping names the latter. With names of the content alone, a file that a slow sweep has found
unneeded could be one that a starting driver has just found to exist.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import BinaryIO

from arcbeam.sizes import threshold
from arcbeam.store.blobs.durable import DurableBlobs, pieces
from arcbeam.store.blobs.errors import DamagedFileError, MissingFileError, NewerFormatError, StoreError
from arcbeam.store.blobs.private import open_new
from arcbeam.store.manifest.jobgraphfile import JobGraph, JobGraphFile, decode, encode
from arcbeam.store.manifest.names import job_graph_file_name

_PART_BYTES = threshold(8 << 20, 64)


def described(name: str, path: Path) -> JobGraphFile:
    """Return the entry of a local file in a job graph."""
    digest, size = hashlib.sha256(), 0
    with open(path, "rb") as file:
        while part := file.read(_PART_BYTES):
            digest.update(part)
            size += len(part)
    return JobGraphFile(name, digest.hexdigest(), size)


def keep(blobs: DurableBlobs, job_graph: JobGraph, paths: Mapping[str, Path], epoch: int, before: str) -> str:
    """Store a job graph and its files in a job's folder, unless they exist.

    Of existing files only the size is checked: a job graph may have hundreds of megabytes, and a reader checks the
    digest.

    Args:
        blobs: the job's folder.
        job_graph: the job graph.
        paths: the local file of each of its files, by name.
        epoch: of the driver.
        before: the job graph of the manifest that its opening follows; "": it has none.

    Returns:
        The name of the job graph's file, for the opening.
    """
    had = readable(blobs, before)
    stored = {} if had is None else {file.sha256: file for file in had.files}
    files: list[JobGraphFile] = []
    for file in job_graph.files:
        kept = stored.get(file.sha256)
        if kept is None or not _is_whole(blobs, kept):
            kept = replace(file, blob=job_graph_file_name(epoch, file.sha256))
            if not _is_whole(blobs, kept):
                blobs.put_file(kept.blob, paths[file.name])
        files.append(replace(kept, name=file.name))
    name, data = encode(replace(job_graph, files=tuple(files)), epoch)
    if had is not None and before.endswith(name[name.index("-") :]):
        return before
    if not blobs.create(name, data) and blobs.get(name) != data:
        blobs.put(name, data)
    return name


def readable(blobs: DurableBlobs, name: str) -> JobGraph | None:
    """Return a job graph; None if it does not exist, or cannot be read."""
    try:
        return read(blobs, name) if name else None
    except (MissingFileError, DamagedFileError, NewerFormatError):
        return None


def _is_whole(blobs: DurableBlobs, file: JobGraphFile) -> bool:
    """Return whether a file exists with its full length: one small request."""
    last = max(file.size - 1, 0)
    try:
        return len(blobs.get_range(file.blob, last, 2)) == file.size - last
    except MissingFileError:
        return False


def read(blobs: DurableBlobs, name: str) -> JobGraph:
    """Return a job graph.

    Raises:
        MissingFileError, DamagedFileError, NewerFormatError: it cannot be read.
    """
    return decode(blobs.get(name), name, blobs)


def fetch(blobs: DurableBlobs, file: JobGraphFile, part: Callable[[bytes], object]) -> None:
    """Read a file of a job graph. `part` gets its bytes in pieces, before they are verified.

    Raises:
        StoreError: it is missing or damaged, or cannot be read.
    """
    name, at, digest = file.blob, 0, hashlib.sha256()
    for data in pieces(blobs, name, file.size):
        part(data)
        digest.update(data)
        at += len(data)
    if (at, digest.hexdigest()) != (file.size, file.sha256):
        raise DamagedFileError(
            f"'{name}' in '{blobs}' was changed: it is file '{file.name}' of the job graph",
            "restore the file from a backup, or delete it and submit the pipeline's script again with the same folder",
        )


def copy(source: DurableBlobs, name: str, target: DurableBlobs, scratch: Path) -> None:
    """Copy a job graph and its files to another job's folder."""
    job_graph = read(source, name)
    for file in job_graph.files:
        copy_through(scratch, target, file.blob, partial(_fetch_into, source, file))
    target.put(name, source.get(name))


def _fetch_into(source: DurableBlobs, file: JobGraphFile, copy: BinaryIO) -> None:
    fetch(source, file, copy.write)


def copy_through(scratch: Path, target: DurableBlobs, name: str, fetch: Callable[[BinaryIO], None]) -> None:
    """Copy a file, through a local one that `fetch` fills. It is complete before it is published.

    Raises:
        StoreError: the copy failed.
    """
    path = scratch / uuid.uuid4().hex
    try:
        with open_new(path) as copy:
            fetch(copy)
        target.put_file(name, path)
    except OSError as e:
        raise StoreError(
            f"'{name}' cannot be copied through '{scratch}': {e}", "check that the disk has free space"
        ) from e
    finally:
        path.unlink(missing_ok=True)
