"""A program whose options and URLs contain a secret, and a search for that secret in all places."""

from __future__ import annotations

import base64
import contextlib
import os
import stat
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms import window

from arcbeam import ArcbeamRunner
from arcbeam.io import WriteParts
from tests.notes import note
from tests.spark.streaming.fed import fed

SECRET = "pl4nt3d+s3cr3t"
VARIABLE = "PLANTED"
"""The environment variable with the secret: the user's command line is not arcbeam's responsibility."""


def options(secret: str) -> list[str]:
    """Return options of each kind with the secret."""
    return [
        f"--s3_secret_access_key={secret}",
        "--s3_access_key_id=planted-id",
        f"--spark_conf=spark.planted.password={secret}",
        f"--spark_conf=spark.planted.url=s3://id:{secret}@bucket/key",
        "--spark_conf=spark.planted.harmless=1",
        "--shards=2",
    ]


def streaming(p: beam.Pipeline, folder: Path) -> None:
    """Collect a source in windows of ten, and write part files, whose file systems get the options, too."""
    numbers = fed(p, folder / "source")
    _ = numbers | "Text" >> beam.Map(str) | WriteParts(str(folder / "parts"))
    panes = numbers | beam.Map(lambda n: (0, n)) | beam.WindowInto(window.FixedWindows(10)) | beam.GroupByKey()
    _ = panes | "Note" >> beam.Map(lambda pair, to: note(sorted(pair[1]), to), str(folder / "out"))


def bounded(p: beam.Pipeline, folder: Path) -> None:
    """Use a side input and an exchange; the last stage waits for a file."""
    side = p | "Side" >> beam.Create(range(1000))
    keyed = p | beam.Create(range(100)) | beam.Map(lambda n: (n % 3, n)) | beam.GroupByKey()
    waited = keyed | beam.Map(_waiting, str(folder), beam.pvalue.AsList(side))
    _ = waited | beam.Map(str) | WriteParts(str(folder / "parts"))


def _waiting(pair: Any, folder: str, side: list[int]) -> int:
    note(pair[0], f"{folder}/out")
    while not os.path.exists(f"{folder}/gate"):
        time.sleep(0.05)
    return len(side)


def main() -> None:
    """Run a pipeline with the secret of the environment, with umask 0: `planted.py KIND FOLDER OPTIONS`."""
    kind, folder, *more = sys.argv[1:]
    os.umask(0)
    secret = os.environ.pop(VARIABLE)
    given = PipelineOptions([*options(secret), *(each.replace("SECRET", secret) for each in more)])
    p = beam.Pipeline(runner=ArcbeamRunner(), options=given)
    {"streaming": streaming, "bounded": bounded}[kind](p, Path(folder))
    p.run().wait_until_finish()


def holding(folder: Path, secret: str = SECRET) -> list[str]:
    """Return the files below a folder that contain a secret, plain, compressed or as base64."""
    return [str(path) for path, data in _files(folder) if any(secret.encode() in view for view in _views(data))]


def _files(folder: Path) -> Iterator[tuple[Path, bytes]]:
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # removed in the meantime
            if path.is_file() and not path.is_symlink():
                yield path, path.read_bytes()


def _views(data: bytes) -> Iterator[bytes]:
    yield data
    if data.startswith(b"arcprogr"):
        inside = zlib.decompress(data[20:])
        yield inside
        for word in inside.split(b'"'):
            with contextlib.suppress(ValueError):
                yield (decoded := base64.b64decode(word, validate=True))
                yield from unpickled(decoded)


def unpickled(data: bytes) -> Iterator[bytes]:
    """Yield Beam's pickles within a proto: base64 of bz2 or zlib."""
    import bz2
    import re

    for word in re.findall(rb"[A-Za-z0-9+/=]{64,}", data):
        for unpack in (bz2.decompress, zlib.decompress):
            with contextlib.suppress(Exception):
                yield unpack(base64.b64decode(word))


def readable(folder: Path, *names: str) -> list[str]:
    """Return the paths below matching entries of a folder that other users may read or change."""
    found = []
    for name in names:
        for top in folder.glob(name):
            for path in (top, *top.rglob("*")):
                with contextlib.suppress(OSError):
                    if (mode := stat.S_IMODE(path.lstat().st_mode)) & 0o077 and not path.is_symlink():
                        found.append(f"{mode:04o} {path}")
    return found


def command_lines(pid: int) -> list[str]:
    """Return the command lines of a process and its descendants."""
    found = []
    for process in processes(pid):
        with contextlib.suppress(OSError):
            found.append(Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return found


def processes(pid: int) -> list[int]:
    """Return a process and its descendants."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [pid]
    for process in found:
        found += parents.get(process, [])
    return found


if __name__ == "__main__":
    main()
