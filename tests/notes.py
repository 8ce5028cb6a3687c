"""Notes that user code on Spark writes as a side effect, for a test to read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def note(element: Any, folder: str) -> None:
    """Add to the file of this process in a folder."""
    with open(os.path.join(folder, str(os.getpid())), "a") as file:
        file.write(f"{element!r}\n")


def noted(folder: Path) -> list[Any]:
    """Return what `note` was called with, in all processes."""
    return [eval(line) for file in sorted(folder.iterdir()) for line in file.read_text().splitlines()]
