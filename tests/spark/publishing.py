"""A publisher as users may write it: rows are staged in files and published by renaming them."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam

from arcbeam.io import Publisher, attempt


class Stage(beam.DoFn):  # type: ignore[misc]  # Beam is untyped
    """Stages a file of each bundle's elements, and outputs its path."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def start_bundle(self) -> None:
        """Begin without elements."""
        self._elements: list[str] = []

    def process(self, element: Any) -> None:
        """Keep the element until the bundle ends."""
        self._elements.append(str(element))

    def finish_bundle(self) -> Iterator[Any]:
        """Write the elements to a file."""
        if self._elements:
            by = attempt()
            assert by.token, "a task must have a name"
            # A task has a bundle for each of its shards.
            name = f"{by.job}_{by.micro_batch}_{by.token}_{uuid.uuid4().hex}"
            staged = self._folder / "staged"
            staged.mkdir(exist_ok=True)
            (staged / name).write_text("\n".join(self._elements))
            yield beam.transforms.window.GlobalWindows.windowed_value(name)


class Renames(Publisher):
    """Renames staged files.

    Args:
        folder: the folder of all files.
        fails: how often publishing fails when half of it is done, counted in a file.
    """

    def __init__(self, folder: Path, fails: int = 0) -> None:
        self._folder, self._fails = folder, fails

    def setup(self) -> None:
        """Record the call."""
        (self._folder / "lives").mkdir(exist_ok=True)
        self._life = self._folder / "lives" / uuid.uuid4().hex
        self._life.write_text("set up")

    def teardown(self) -> None:
        """Record the call."""
        self._life.write_text(self._life.read_text() + ", torn down")

    def publish(self, committables: Sequence[str]) -> None:
        """See `Publisher`."""
        for name in committables:
            staged = self._folder / "staged" / name
            if staged.exists():
                os.replace(staged, self._folder / name)
            failures = self._folder / "staged" / ".failures"
            failed = int(failures.read_text()) if failures.exists() else 0
            if failed < self._fails:
                failures.write_text(str(failed + 1))
                raise OSError("the disk is on fire")

    def sweep(self, job: str, micro_batch: int) -> None:
        """See `Publisher`."""
        for path in (self._folder / "staged").glob(f"{job}_*"):
            if int(path.name.split("_")[1]) <= micro_batch:
                path.unlink(missing_ok=True)


def published(folder: Path) -> list[str]:
    """Return all that is published, sorted."""
    return sorted(line for path in folder.iterdir() if path.is_file() for line in path.read_text().splitlines())


def lives(folder: Path) -> set[str]:
    """Return the recorded calls of all instances."""
    return {path.read_text() for path in (folder / "lives").iterdir()}


def left_over(folder: Path) -> list[str]:
    """Return staged files that were neither published nor removed."""
    return sorted(path.name for path in (folder / "staged").iterdir() if not path.name.startswith("."))
