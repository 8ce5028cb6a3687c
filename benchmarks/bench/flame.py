"""A flame graph as a small self-contained SVG: a frame's width is its share of all samples, callers below.

Owns the picture. Must not know who took the samples.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

WIDTH, ROW, LEAST = 1200.0, 17, 2.0
"""Pixels; narrower frames are omitted."""
_LETTER = 6.3
_COLOURS = (
    ("the pipeline's own functions", "#8fce8f", ("bench/", "loop (chain", "lambda")),
    ("arcbeam", "#8fb8e8", ("arcbeam/",)),
    ("Beam's SDK", "#f2b27a", ("apache_beam/", "operations.c", "common.c", "coder_impl.c", "windowed_value.c")),
    ("other", "#d4d0c8", ("",)),
)


@dataclass(slots=True)
class Frame:
    """A function below its callers.

    Attributes:
        samples: samples in which it, or a function that it called, was running.
        called: its callees, by name.
    """

    samples: int = 0
    called: dict[str, Frame] = field(default_factory=dict)

    def depth(self, least: float) -> int:
        """Return the number of drawn frames above it, including itself."""
        return 1 + max((one.depth(least) for one in self.called.values() if one.samples >= least), default=0)


def tree(lines: Iterable[str], root: str) -> Frame:
    """Merge stacks to a tree.

    Args:
        lines: "caller;called;… samples".
        root: only what runs below the function with this prefix counts.
    """
    top = Frame()
    for line in lines:
        stack, _, samples = line.rstrip().rpartition(" ")
        names = stack.split(";")
        start = next((i for i, name in enumerate(names) if name.startswith(root)), None)
        if start is None:
            continue
        top.samples += int(samples)
        frame = top
        for name in names[start:]:
            frame = frame.called.setdefault(name, Frame())
            frame.samples += int(samples)
    return top


def svg(title: str, top: Frame) -> str:
    """Return the picture."""
    if not top.samples:
        raise ValueError(f"{title}: no samples")
    pixels = WIDTH / top.samples
    height = (top.depth(LEAST / pixels) + 2) * ROW
    legend = "".join(
        f'<rect x="{x}" y="3" width="11" height="11" fill="{colour}"/><text x="{x + 15}" y="13">{name}</text>'
        for x, (name, colour, _) in zip((560, 770, 860, 965), _COLOURS, strict=True)
    )
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {height}" font-family="monospace" '
        f'font-size="10.5"><rect width="100%" height="100%" fill="#fff"/>'
        f'<text x="4" y="13" font-size="13">{html.escape(title)}: {top.samples:,} samples</text>{legend}'
    )
    return "\n".join([head, *_drawn(top, 0.0, height - ROW, pixels, top.samples), "</svg>\n"])


def _drawn(frame: Frame, x: float, y: float, pixels: float, total: int) -> Iterator[str]:
    for name, called in sorted(frame.called.items(), key=lambda item: -item[1].samples):
        width = called.samples * pixels
        if width < LEAST:
            return
        letters = int((width - 4) / _LETTER)
        shown = name if len(name) <= letters else name[: max(letters - 1, 0)] + "…"
        label = f'<text x="{x + 2:.1f}" y="{y + 12:g}">{html.escape(shown)}</text>' if letters > 3 else ""
        text = f"{html.escape(name)}: {100 * called.samples / total:.1f} %"
        yield (
            f'<g><title>{text}</title><rect x="{x:.1f}" y="{y:g}" width="{width - 0.4:.1f}" height="{ROW - 1}" '
            f'fill="{_colour(name)}"/>{label}</g>'
        )
        yield from _drawn(called, x, y - ROW, pixels, total)
        x += width


def _colour(name: str) -> str:
    return next(colour for _, colour, marks in _COLOURS if any(mark in name for mark in marks))
