"""Programs in a job's folder: what a driver needs to go on with a job without the script that began it.

Owns putting them there, before a manifest names them, and getting them back whole. They are named by their content, and
by the epoch of the driver that kept them, and never changed. A driver that is started with what runs the job already
finds all of it there.

SUBTLE: why the epoch? A driver names what it has put there itself, and what the program of the manifest has that it
follows. The former has its epoch, and no sweep touches that before a later one has opened the job; the latter is named
by the head of whoever may be sweeping. With names of the content alone, what a slow sweep has found to be nobody's
could be what a driver that starts has just found to be there.
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
    """A local file, as a program names it."""
    digest, size = hashlib.sha256(), 0
    with open(path, "rb") as file:
        while part := file.read(_PART_BYTES):
            digest.update(part)
            size += len(part)
    return JobGraphFile(name, digest.hexdigest(), size)


def keep(blobs: DurableBlobs, program: JobGraph, paths: Mapping[str, Path], epoch: int, before: str) -> str:
    """Puts a program and its files into a job's folder, as far as they are not there.

    Of a file that is there only the size is looked at: a program may have hundreds of megabytes, and whoever needs one
    reads it with its digest.

    Args:
        blobs: the job's folder.
        program: what to keep.
        paths: the local file of each of its files, by name.
        epoch: of the driver.
        before: the program of the manifest that its opening follows; "": it has none.

    Returns:
        The name of the program's file, for the opening.
    """
    had = readable(blobs, before)
    there = {} if had is None else {file.sha256: file for file in had.files}
    files: list[JobGraphFile] = []
    for file in program.files:
        kept = there.get(file.sha256)
        if kept is None or not _is_whole(blobs, kept):
            kept = replace(file, blob=job_graph_file_name(epoch, file.sha256))
            if not _is_whole(blobs, kept):
                blobs.put_file(kept.blob, paths[file.name])
        files.append(replace(kept, name=file.name))
    name, data = encode(replace(program, files=tuple(files)), epoch)
    if had is not None and before.endswith(name[name.index("-") :]):
        return before
    if not blobs.create(name, data) and blobs.get(name) != data:
        blobs.put(name, data)
    return name


def readable(blobs: DurableBlobs, name: str) -> JobGraph | None:
    """A program; None if it is none, or cannot be read."""
    try:
        return read(blobs, name) if name else None
    except (MissingFileError, DamagedFileError, NewerFormatError):
        return None


def _is_whole(blobs: DurableBlobs, file: JobGraphFile) -> bool:
    """Whether it is there, and as long as it should be: one small request."""
    last = max(file.size - 1, 0)
    try:
        return len(blobs.get_range(file.blob, last, 2)) == file.size - last
    except MissingFileError:
        return False


def read(blobs: DurableBlobs, name: str) -> JobGraph:
    """A program.

    Raises:
        MissingFileError, DamagedFileError, NewerFormatError: it cannot be read.
    """
    return decode(blobs.get(name), name, blobs)


def fetch(blobs: DurableBlobs, file: JobGraphFile, part: Callable[[bytes], object]) -> None:
    """Reads a program's file; `part` gets its bytes, piece by piece, before it is known that they are right.

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
            f"'{name}' in '{blobs}' is not what it was: the program's file '{file.name}'",
            "bring the file back from a copy, or delete it and submit the pipeline's script again with the same folder",
        )


def copy(source: DurableBlobs, name: str, target: DurableBlobs, scratch: Path) -> None:
    """Copies a program and its files to another job's folder."""
    program = read(source, name)
    for file in program.files:
        copy_through(scratch, target, file.blob, partial(_fetch_into, source, file))
    target.put(name, source.get(name))


def _fetch_into(source: DurableBlobs, file: JobGraphFile, copy: BinaryIO) -> None:
    fetch(source, file, copy.write)


def copy_through(scratch: Path, target: DurableBlobs, name: str, fetch: Callable[[BinaryIO], None]) -> None:
    """Copies a file, through a local one that `fetch` fills, and that is whole before it is published.

    Raises:
        StoreError: that is not possible.
    """
    path = scratch / uuid.uuid4().hex
    try:
        with open_new(path) as copy:
            fetch(copy)
        target.put_file(name, path)
    except OSError as e:
        raise StoreError(f"'{name}' cannot be copied through '{scratch}': {e}", "see that it has room") from e
    finally:
        path.unlink(missing_ok=True)
