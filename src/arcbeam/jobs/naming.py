"""The name of a job that was submitted without one: that of its script.

Owns the search for the script in a submitted pipeline. It only reads the pipeline, and unpickles nothing.
"""

from __future__ import annotations

import base64
import bz2
import pickletools
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path, PurePath
from typing import Any

import apache_beam
from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb

_SDK = Path(apache_beam.__file__).parent
_INSTALLED = frozenset({"site-packages", "dist-packages"})
"""Folders of libraries, on any machine."""
_TRANSFORMS_MAX = 100
_BYTES_MAX = 1 << 18
"""Limit for a pickled function. A longer one is not searched for a name."""


def script_of(pipeline: Any) -> str:
    """Return the name, without folder and suffix, of the script whose functions a pipeline calls; "" if unknown.

    Functions of the program's `__main__` are pickled by value, with the name of their file.

    Args:
        pipeline: `beam_runner_api_pb2.Pipeline`, of any SDK; it may be malformed.
    """
    pardos = (t for t in pipeline.components.transforms.values() if t.spec.urn == common_urns.primitives.PAR_DO.urn)
    for transform in islice(pardos, _TRANSFORMS_MAX):
        try:
            payload = runner_pb.ParDoPayload.FromString(transform.spec.payload).do_fn.payload
            words = list(_words(payload))
        except Exception:
            continue  # another SDK's, or malformed: a missing name is not an error
        files = [PurePath(word) for word in words if word.endswith(".py")]
        scripts = [file for file in files if file.is_absolute() and not _is_library(file)]
        if scripts and "__main__" in words:
            return scripts[0].stem
    return ""


def _is_library(file: PurePath) -> bool:
    """Return whether a file is a library's; the SDK wraps a script's functions in some of its own.

    The place of the SDK on the submitter's machine is unknown, but the names of the SDK's files are known. So a script
    in a folder named `apache_beam` is a script.
    """
    parts = file.parts
    if _INSTALLED.intersection(parts):
        return True
    places = (n for n, part in enumerate(parts) if part == _SDK.name)
    return any(_SDK.joinpath(*parts[place + 1 :]).is_file() for place in places)


def _words(payload: bytes) -> Iterator[str]:
    """Yield the strings in a pickle of the SDK."""
    data = base64.b64decode(payload, validate=True)
    try:
        pickled = zlib.decompressobj().decompress(data, _BYTES_MAX)
    except zlib.error:
        pickled = bz2.BZ2Decompressor().decompress(data, _BYTES_MAX)
    for _, argument, _ in pickletools.genops(pickled):
        if isinstance(argument, str):
            yield argument
