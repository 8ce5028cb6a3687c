"""A job graph as a file: a pipeline, its options, and what its workers need.

Owns the format: the header of all binary files of the store, a CRC (u32) of the rest, and JSON, compressed with zlib.
Bytes in it are base64. Opaque parts stay opaque: the store knows neither pipelines nor the work of a worker.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from arcbeam.model.fingerprint import Fingerprint
from arcbeam.store.blobs.errors import DamagedFileError, NewerFormatError
from arcbeam.store.blobs.fileheader import HEADER_BYTES, file_header, version_in
from arcbeam.store.manifest.names import job_graph_name

VERSION = 1
_MAGIC = b"arcgraph"
_CRC = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class JobGraphFile:
    """A file that workers get unchanged.

    Attributes:
        name: its name on the workers.
        sha256: of its content, hexadecimal.
        size: bytes.
        blob: its name in the job's folder; "" before it is stored.
    """

    name: str
    sha256: str
    size: int
    blob: str = ""


@dataclass(frozen=True, slots=True)
class JobGraph:
    """What a driver needs to resume a job without the script that began it.

    Attributes:
        name: of the job, for people.
        pipeline: serialized.
        options: of the submission, by name; JSON's values.
        worker: setup of a worker before it runs the pipeline's code; JSON's values.
        files: for the workers.
        versions: of Python, Beam and arcbeam, by these names, that pickled the pipeline's code.
        transforms: fingerprints of the pipeline's.
        secrets: the names of the options' secrets (`arcbeam.secrets`), whose values are not stored.
    """

    name: str
    pipeline: bytes = field(repr=False)
    options: Mapping[str, Any] = field(default_factory=dict)
    worker: Mapping[str, Any] = field(default_factory=dict, repr=False)
    files: tuple[JobGraphFile, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    transforms: Mapping[str, Fingerprint] = field(default_factory=dict, repr=False)
    secrets: tuple[str, ...] = ()


def encode(job_graph: JobGraph, epoch: int) -> tuple[str, bytes]:
    """Return the name and bytes of a job graph's file. The name ends with a digest; equal graphs give equal results.

    Args:
        job_graph: a job graph whose files are stored.
        epoch: of the driver that stores it.
    """
    record = {
        "name": job_graph.name,
        "pipeline": base64.b64encode(job_graph.pipeline).decode(),
        "options": dict(job_graph.options),
        "worker": dict(job_graph.worker),
        "files": [asdict(file) for file in job_graph.files],
        "versions": dict(job_graph.versions),
        "transforms": {name: [of.urn, of.inputs, of.content] for name, of in job_graph.transforms.items()},
        "secrets": list(job_graph.secrets),
    }
    content = json.dumps(record, sort_keys=True).encode()
    body = zlib.compress(content)
    name = job_graph_name(epoch, hashlib.sha256(content).hexdigest()[:32])
    return name, file_header(_MAGIC, VERSION) + _CRC.pack(zlib.crc32(body)) + body


def decode(data: bytes, name: str, where: object) -> JobGraph:
    """Return the job graph in bytes.

    Args:
        data: all bytes of a file.
        name: of the file, for errors.
        where: its store.

    Raises:
        DamagedFileError: cut off, changed, or not a job graph.
        NewerFormatError: written by a newer version.
    """
    version = version_in(data[:HEADER_BYTES], _MAGIC)
    if version is None:
        raise _damaged(name, where, "it does not begin as a job graph")
    if version > VERSION:
        raise NewerFormatError(
            f"job graph '{name}' in '{where}' has format {version}; this version of arcbeam reads up to {VERSION}",
            "use the version of arcbeam that wrote it, or a newer one, or submit the pipeline's script",
        )
    body = data[HEADER_BYTES + _CRC.size :]
    if data[HEADER_BYTES : HEADER_BYTES + _CRC.size] != _CRC.pack(zlib.crc32(body)):
        raise _damaged(name, where, "its content was changed")
    try:
        record = json.loads(zlib.decompress(body))
        return JobGraph(
            record["name"],
            base64.b64decode(record["pipeline"]),
            record["options"],
            record["worker"],
            tuple(JobGraphFile(**file) for file in record["files"]),
            record["versions"],
            {name: _fingerprint(*of) for name, of in record["transforms"].items()},
            tuple(record["secrets"]),
        )
    except (ValueError, KeyError, TypeError, zlib.error) as e:
        raise _damaged(name, where, f"its content is not a job graph: {type(e).__name__}: {e}") from e


def _fingerprint(urn: str, inputs: list[str], content: str) -> Fingerprint:
    return Fingerprint(urn, tuple(inputs), content)


def _damaged(name: str, where: object, what: str) -> DamagedFileError:
    return DamagedFileError(
        f"job graph '{name}' in '{where}' is damaged: {what}",
        "the job's state is intact: submit its script again with the same folder, or restore the file from a backup",
    )
