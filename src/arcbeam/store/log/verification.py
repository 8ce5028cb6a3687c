"""Whether the files that a manifest names are as it says.

Owns reading them whole, in bounded memory. Must not know who wants to know.
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
    """What is wrong with the files of a micro-batch, and with the manifests of savepoints: a line each that names it.

    A file that cannot be read does not keep the others from being looked at, whatever the reason.
    """
    checks: list[Callable[[], object]] = [
        *((lambda file=file: read_shard_file(blobs, file)) for shard in manifest.shards for file in shard.files),
        *((lambda side=side: read_side_file(blobs, side, len)) for side in manifest.side_files),
        *((lambda pin=pin: read_manifest(blobs, pin.micro_batch)) for pin in savepoints),
        *((lambda name=name: read_job_graph(blobs, name)) for name in [manifest.program] if name),
    ]
    for check in checks:
        try:
            check()
        except StoreError as e:
            yield e.message


def read_shard_file(blobs: DurableBlobs, file: ShardFile) -> None:
    """Reads a file of state, with all its checksums.

    Raises:
        StoreError: it is missing, damaged or too new, or cannot be read.
    """
    for _ in opened(blobs, file).blocks():
        pass


def read_job_graph(blobs: DurableBlobs, name: str) -> None:
    """Reads a program, and all files that it needs.

    Raises:
        StoreError: one is missing, damaged or too new, or cannot be read.
    """
    for file in jobgraphs.read(blobs, name).files:
        jobgraphs.fetch(blobs, file, len)


def read_side_file(blobs: DurableBlobs, side: SideFile, part: Callable[[bytes], object]) -> None:
    """Reads a file of a side input; `part` gets its bytes, piece by piece, before it is known that they are right.

    Its checksum is the manifest's. Without one, of a manifest that an earlier version wrote, only the size is checked.

    Raises:
        StoreError: it is missing or damaged, or cannot be read.
    """
    size, crc = 0, 0
    for data in pieces(blobs, side.name, side.size):
        part(data)
        size, crc = size + len(data), crc32(data, crc)
    if size != side.size:
        found = f"{size} of {side.size} bytes are there" if size < side.size else f"it has more than {side.size} bytes"
        raise _damaged(blobs, side, found)
    if side.crc is not None and crc != side.crc:
        raise _damaged(blobs, side, "its content is changed")


def _damaged(blobs: DurableBlobs, side: SideFile, what: str) -> DamagedFileError:
    return DamagedFileError(
        f"side-input file '{side.name}' in '{blobs}' is damaged: {what}",
        "bring the file back from a copy, or resume from a savepoint",
    )
