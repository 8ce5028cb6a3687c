"""Programs in a job's folder: what a driver needs to go on with a job without the script that began it.

Owns putting them there, before a manifest names them, and getting them back whole. They are named by their content and
never changed: a driver that is started again with the same finds all of it there, or mends what is damaged. Nothing
removes them, as nothing removes the openings that name them.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import BinaryIO

from arcbeam.store.blobs.durable import DurableBlobs, pieces
from arcbeam.store.blobs.errors import DamagedFileError, MissingFileError, StoreError
from arcbeam.store.manifest.names import program_file_name
from arcbeam.store.manifest.programfile import Program, ProgramFile, decode, encode

_PART_BYTES = 8 << 20


def described(name: str, path: Path) -> ProgramFile:
    """A local file, as a program names it."""
    digest, size = hashlib.sha256(), 0
    with open(path, "rb") as file:
        while part := file.read(_PART_BYTES):
            digest.update(part)
            size += len(part)
    return ProgramFile(name, digest.hexdigest(), size)


def keep(blobs: DurableBlobs, program: Program, paths: Mapping[str, Path]) -> str:
    """Puts a program and its files into a job's folder, as far as they are not there, or not what they were.

    Args:
        blobs: the job's folder.
        program: what to keep.
        paths: the local file of each of its files, by name.

    Returns:
        The name of the program's file, for a manifest.
    """
    for file in program.files:
        try:
            fetch(blobs, file, len)
        except (MissingFileError, DamagedFileError):
            blobs.put_file(program_file_name(file.sha256), paths[file.name])
    name, data = encode(program)
    if not blobs.create(name, data) and blobs.get(name) != data:
        blobs.put(name, data)
    return name


def read(blobs: DurableBlobs, name: str) -> Program:
    """A program.

    Raises:
        MissingFileError, DamagedFileError, NewerFormatError: it cannot be read.
    """
    return decode(blobs.get(name), name, blobs)


def fetch(blobs: DurableBlobs, file: ProgramFile, part: Callable[[bytes], object]) -> None:
    """Reads a program's file; `part` gets its bytes, piece by piece, before it is known that they are right.

    Raises:
        StoreError: it is missing or damaged, or cannot be read.
    """
    name, at, digest = program_file_name(file.sha256), 0, hashlib.sha256()
    for data in pieces(blobs, name, file.size):
        part(data)
        digest.update(data)
        at += len(data)
    if (at, digest.hexdigest()) != (file.size, file.sha256):
        raise DamagedFileError(
            f"'{name}' in '{blobs}' is not what it was: the program's file '{file.name}'",
            "bring the file back from a copy, or submit the pipeline's script again with the same folder",
        )


def copy(source: DurableBlobs, name: str, target: DurableBlobs, scratch: Path) -> None:
    """Copies a program and its files to another job's folder."""
    program = read(source, name)
    for file in program.files:
        copy_through(scratch, target, program_file_name(file.sha256), partial(_fetch_into, source, file))
    target.put(name, source.get(name))


def _fetch_into(source: DurableBlobs, file: ProgramFile, copy: BinaryIO) -> None:
    fetch(source, file, copy.write)


def copy_through(scratch: Path, target: DurableBlobs, name: str, fetch: Callable[[BinaryIO], None]) -> None:
    """Copies a file, through a local one that `fetch` fills, and that is whole before it is published.

    Raises:
        StoreError: that is not possible.
    """
    path = scratch / uuid.uuid4().hex
    try:
        with open(path, "xb") as copy:
            fetch(copy)
        target.put_file(name, path)
    except OSError as e:
        raise StoreError(f"'{name}' cannot be copied through '{scratch}': {e}", "see that it has room") from e
    finally:
        path.unlink(missing_ok=True)
