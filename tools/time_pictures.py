"""Draws the pictures of docs/explanation/time.md with the engine's own formula.

`--check` writes nothing to docs; it fails when a picture there is out of date. Pictures of another version of
matplotlib are not compared: the bytes of the same drawing differ.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

import matplotlib

from arcbeam.engine.watermarks.observed import RootWatermark, later, observed_time
from arcbeam.model.observers import Observer
from arcbeam.model.timestamps import MIN_TIMESTAMP, Duration, Timestamp

PICTURES = Path(__file__).resolve().parents[1] / "docs" / "pictures"
MINUTE = 60_000_000
SILENT = RootWatermark(MIN_TIMESTAMP, MIN_TIMESTAMP)
BLUE, RED, INK = "#3b6ea8", "#c2571a", "#333333"


def watermark(folder: Path) -> None:
    """Draw rows in the order of their arrival, by micro-batch, and the watermark of each micro-batch."""
    import matplotlib.pyplot as plt

    chance = random.Random(4)
    observer = Observer("rows", Duration(10 * MINUTE))
    seen: dict[str, Timestamp] = {}
    figure, axes = plt.subplots(figsize=(9, 4.2))
    for micro_batch in range(24):
        there = observed_time((observer,), SILENT, seen)
        rows = [Timestamp((5 * micro_batch - int(chance.expovariate(1 / 6))) * MINUTE) for _ in range(6)]
        places = [micro_batch + 0.1 + 0.13 * n for n in range(len(rows))]
        for late, color, name in ((False, BLUE, "a row"), (True, RED, "a row behind the watermark")):
            points = [(place, row / MINUTE) for place, row in zip(places, rows, strict=True) if (row < there) == late]
            if points:
                axes.scatter(*zip(*points, strict=True), color=color, s=10, label=name if micro_batch == 12 else None)
        if there > MIN_TIMESTAMP:
            label = "watermark: the latest of the micro-batches before, less 10" if micro_batch == 12 else None
            axes.hlines(there / MINUTE, micro_batch, micro_batch + 1, color=INK, linewidth=1.4, label=label)
        seen = later(seen, {"rows": max(rows)})
    axes.set_xlabel("step")
    axes.set_ylabel("event time, minutes")
    axes.legend(frameon=False, loc="upper left")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    _save(figure, folder / "watermark.svg")


def join(folder: Path) -> None:
    """Draw how long the two sides of a join wait for each other."""
    import matplotlib.pyplot as plt

    before, after = 2, 5
    figure, axes = plt.subplots(figsize=(9, 2.4))
    axes.broken_barh([(10 - before, before + after)], (0.55, 0.3), color=RED, alpha=0.25)
    axes.scatter([10], [1.2], color=BLUE)
    axes.annotate("a left row, at 10", (10, 1.2), (6, 4), textcoords="offset points")
    axes.annotate(
        f"its partners: right rows from {before} earlier to {after} later",
        (8, 0.65),
        (4, 0),
        textcoords="offset points",
    )
    axes.annotate("", (15, 1.2), (10, 1.2), arrowprops={"arrowstyle": "->", "color": BLUE})
    axes.annotate("it waits until the watermark is there", (15, 1.2), (4, -4), textcoords="offset points")
    axes.set_xlim(5, 22)
    axes.set_ylim(0.3, 1.7)
    axes.set_yticks([])
    axes.set_xlabel("event time")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    _save(figure, folder / "join.svg")


def _save(figure: object, file: Path) -> None:
    import matplotlib.pyplot as plt

    figure.tight_layout()  # type: ignore[attr-defined]
    figure.savefig(file, metadata={"Date": None})  # type: ignore[attr-defined]
    plt.close(figure)  # type: ignore[arg-type]


def draw(folder: Path) -> None:
    """Draw all pictures: the same bytes each time."""
    matplotlib.use("Agg")
    folder.mkdir(exist_ok=True)
    with matplotlib.rc_context({"svg.hashsalt": "arcbeam"}):
        for picture in (watermark, join):
            picture(folder)


def differing(folder: Path) -> list[str]:
    """Return the pictures in a folder that are missing, or out of date and drawn by this matplotlib."""
    with tempfile.TemporaryDirectory() as drawn:
        draw(Path(drawn))
        return [new.name for new in sorted(Path(drawn).iterdir()) if not _is_same(folder / new.name, new.read_bytes())]


def _is_same(picture: Path, drawn: bytes) -> bool:
    if not picture.exists():
        return False
    there = picture.read_bytes()
    return there == drawn or f"Matplotlib v{matplotlib.__version__},".encode() not in there


def main(arguments: list[str] | None = None) -> int:
    """Draw the pictures, or check them. Return the exit code."""
    parser = argparse.ArgumentParser(description="Draws the pictures of docs/explanation/time.md.")
    parser.add_argument("--check", action="store_true", help="only say which are not what would be drawn")
    if not parser.parse_args(arguments).check:
        draw(PICTURES)
        return 0
    wrong = differing(PICTURES)
    if wrong:
        print(f"docs/pictures: {', '.join(wrong)} out of date: run `make docs`", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
