"""Jobs that write parts, without Spark: their tasks run in this process, and committables are published here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from arcbeam.harness.operations.publishoperation import OpenPublisher
from arcbeam.model.attempts import Attempt, process_state

JOB = "job-1"


@contextmanager
def attempt(micro_batch: int = 0, order: tuple[int, ...] = (0,), token: str = "t") -> Iterator[None]:
    """While open, code runs as this attempt of a task."""
    process_state.attempt = Attempt(JOB, micro_batch, order, token)
    try:
        yield
    finally:
        process_state.attempt = None


def publish(driven: Any, times: int = 1) -> None:
    """Publish what a pipeline's tasks have collected, in reverse order, with one call for each; then sweep."""
    publishers = {name: OpenPublisher(stage, name) for stage in driven.plan.stages for name in stage.publishers}
    for _ in range(times):
        for name, publisher in publishers.items():
            for each in reversed([each for report in driven.reports for each in report.committables.get(name, ())]):
                publisher.publish([each], again=True)
    for publisher in publishers.values():
        publisher.sweep(JOB, 1_000_000)
        publisher.close()


def published(folder: Path) -> dict[str, list[str]]:
    """Return the lines of all files that readers see, by name."""
    return {
        str(path.relative_to(folder)): path.read_text().splitlines()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith("_") and ".arcbeam" not in path.parts
    }


def successes(folder: Path) -> dict[str, Any]:
    """Return the content of success files, by name."""
    return {str(path.relative_to(folder)): json.loads(path.read_text()) for path in sorted(folder.rglob("_*"))}


def left(folder: Path) -> list[str]:
    """Return the staged files."""
    return sorted(str(path) for path in folder.rglob("*") if ".arcbeam" in path.parts and not _kept(path))


def _kept(path: Path) -> bool:
    """Return whether a file records the owner of the path, or is a list of published files."""
    inside = path.parts[path.parts.index(".arcbeam") + 1 :]
    if inside:
        return inside[0] == "files" or inside[0].startswith("owner-")
    return (path / "files").exists() or any(path.glob("owner-*"))
