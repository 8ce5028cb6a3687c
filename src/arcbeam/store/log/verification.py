"""Checks the files that a manifest names.

Owns reading whole files in bounded memory. Must not know its callers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from zlib import crc32

from arcbeam.model.files import ShardFile, SideFile
from arcbeam.store.blobs.durable import DurableBlobs, pieces
from arcbeam.store.blobs.errors import DamagedFileError, StoreError
from arcbeam.store.log import jobgraphs
from arcbeam.store.log.chain import read_manifest
from arcbeam.store.manifest.values import Manifest, Pin
from arcbeam.store.shards.compaction import opened


def problems(blobs: DurableBlobs, manifest: Manifest, savepoints: Iterable[Pin]) -> Iterator[str]:
    """Yield a line for each fault in the files of a micro-batch, and in the manifests of savepoints.

    An unreadable file does not prevent the check of the others.
    """
    checks: list[Callable[[], object]] = [
        *((lambda file=file: read_shard_file(blobs, file)) for shard in manifest.shards for file in shard.files),
        *((lambda side=side: read_side_file(blobs, side, len)) for side in manifest.side_files),
        *((lambda pin=pin: read_manifest(blobs, pin.micro_batch)) for pin in savepoints),
        *((lambda name=name: read_job_graph(blobs, name)) for name in [manifest.job_graph] if name),
    ]
    for check in checks:
        try:
            check()
        except StoreError as e:
            yield e.message


def read_shard_file(blobs: DurableBlobs, file: ShardFile) -> None:
    """Read a file of state, with all its checksums.

    Raises:
        StoreError: it is missing, damaged or too new, or cannot be read.
    """
    for _ in opened(blobs, file).blocks():
        pass


def read_job_graph(blobs: DurableBlobs, name: str) -> None:
    """Read a job graph, and all its files.

    Raises:
        StoreError: one is missing, damaged or too new, or cannot be read.
    """
    for file in jobgraphs.read(blobs, name).files:
        jobgraphs.fetch(blobs, file, len)


def read_side_file(blobs: DurableBlobs, side: SideFile, part: Callable[[bytes], object]) -> None:
    """Read a file of a side input. `part` gets its bytes in pieces, before they are verified.

    The manifest has its size and its checksum.

    Raises:
        StoreError: it is missing or damaged, or cannot be read.
    """
    size, crc = 0, 0
    for data in pieces(blobs, side.name, side.size):
        part(data)
        size, crc = size + len(data), crc32(data, crc)
    if size != side.size:
        found = f"it has {size} of {side.size} bytes" if size < side.size else f"it has more than {side.size} bytes"
        raise _damaged(blobs, side, found)
    if crc != side.crc:
        raise _damaged(blobs, side, "its content was changed")


def _damaged(blobs: DurableBlobs, side: SideFile, what: str) -> DamagedFileError:
    return DamagedFileError(
        f"side-input file '{side.name}' in '{blobs}' is damaged: {what}",
        "restore the file from a backup, or resume from a savepoint",
    )
