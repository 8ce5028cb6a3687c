"""A layered layout of a directed acyclic graph, from top to bottom, with the same result in every process.

Owns layers, the order within them, coordinates and routes of edges. It knows only nodes, edges and sizes, and imports
no other module of arcbeam: `explain.picture` draws what it returns. The steps are those of Sugiyama's method: layers by
longest path, a bend in each layer that an edge passes, barycentres against crossings, then least squares for straight
lines.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

_SWEEPS = 12  # Over all layers, down and up. Orders of real plans do not improve after about six.
_BEND_WEIGHT = 24.0  # How much straighter than other lines those between two bends are,
_ONLY_WEIGHT = 4.0  # and the only line of both its boxes.
_PORT_GAP = 26.0


class Point(NamedTuple):
    """A point of the picture, in pixels from its top left corner."""

    x: float
    y: float


class Size(NamedTuple):
    """Width and height of a node, in pixels."""

    width: float
    height: float


@dataclass(frozen=True, slots=True)
class PictureLayout:
    """Where everything is.

    Attributes:
        corners: each node's top left corner.
        routes: one for each edge, in the order given. The points are pairs of ends of vertical lines. Between two
            pairs is the gap of two layers, where a curve joins them. No route crosses a node.
        size: of the whole graph, without a margin.
    """

    corners: dict[str, Point]
    routes: tuple[tuple[Point, ...], ...]
    size: Size


@dataclass(slots=True, eq=False)
class _Box:
    """A node, or a bend of a long edge (without a name). `x` is its centre; ins and outs are lines, not boxes."""

    name: str
    layer: int
    width: float
    height: float = 0.0
    x: float = 0.0
    place: int = 0
    ins: list[_Line] = field(default_factory=list)
    outs: list[_Line] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Line:
    """The part of an edge between neighbouring layers."""

    upper: _Box
    lower: _Box

    @property
    def weight(self) -> float:
        if not self.upper.name and not self.lower.name:
            return _BEND_WEIGHT
        return _ONLY_WEIGHT if len(self.upper.outs) == len(self.lower.ins) == 1 else 1.0


def lay_out(sizes: Mapping[str, Size], edges: Sequence[tuple[str, str]], gap: Size) -> PictureLayout:
    """Return positions of nodes and routes of edges.

    Args:
        sizes: of each node, by name, in topological order.
        edges: (from, to), each at most once, from an earlier to a later node.
        gap: least distance between neighbours in a layer, and between layers.
    """
    layers_of = _layers(list(sizes), edges)
    boxes = {name: _Box(name, layers_of[name], *size) for name, size in sizes.items()}
    paths = [_path(boxes[start], boxes[end], gap.width) for start, end in edges]
    left, heights = 0.0, [0.0] * (max(layers_of.values(), default=-1) + 1)
    for box in boxes.values():
        heights[box.layer] = max(heights[box.layer], box.height)
    for component in _components(boxes.values()):
        rows = _order(component)
        _align(rows, gap.width)
        least = min(box.x - box.width / 2 for row in rows for box in row)
        most = max(box.x + box.width / 2 for row in rows for box in row)
        for box in itertools.chain(*rows):
            box.x += left - least
        left += most - least + gap.width
    tops = list(itertools.accumulate((height + gap.height for height in heights), initial=0.0))
    return PictureLayout(
        {box.name: Point(box.x - box.width / 2, tops[box.layer]) for box in boxes.values()},
        tuple(_route(lines, tops, gap.height) for lines in paths),
        Size(max(left - gap.width, 0.0), max(tops[-1] - gap.height, 0.0)),
    )


def _layers(names: Sequence[str], edges: Iterable[tuple[str, str]]) -> dict[str, int]:
    """Return layers by longest path. A chain from a source with one reader is moved down to that reader."""
    ins: dict[str, list[str]] = {name: [] for name in names}
    outs: dict[str, list[str]] = {name: [] for name in names}
    for start, end in edges:
        ins[end].append(start)
        outs[start].append(end)
    layers: dict[str, int] = {}
    loose: set[str] = set()
    for name in names:
        layers[name] = max((layers[above] + 1 for above in ins[name]), default=0)
        if all(above in loose and len(outs[above]) == 1 for above in ins[name]):
            loose.add(name)
    for name in reversed(names):
        if name in loose and outs[name]:
            layers[name] = min(layers[below] for below in outs[name]) - 1
    return layers


def _path(start: _Box, end: _Box, width: float) -> list[_Line]:
    bends = [_Box("", layer, width) for layer in range(start.layer + 1, end.layer)]
    lines = [_Line(upper, lower) for upper, lower in itertools.pairwise([start, *bends, end])]
    for line in lines:
        line.upper.outs.append(line)
        line.lower.ins.append(line)
    return lines


def _components(boxes: Iterable[_Box]) -> list[list[_Box]]:
    """Return connected parts. In each, the boxes are in depth-first order: branches begin side by side."""
    seen: set[_Box] = set()  # Boxes are equal by identity. It is only asked, never iterated.
    found: list[list[_Box]] = []
    for first in boxes:
        component: list[_Box] = []
        waiting = [first]
        while waiting:
            box = waiting.pop()
            if box not in seen:
                seen.add(box)
                component.append(box)
                waiting += [line.upper for line in reversed(box.ins)] + [line.lower for line in reversed(box.outs)]
        if component:
            found.append(component)
    return found


def _order(component: Sequence[_Box]) -> list[list[_Box]]:
    """Return the boxes by layer, in the order with fewest crossings of those that the sweeps find."""
    first = min(box.layer for box in component)
    rows: list[list[_Box]] = [[] for _ in range(first, max(box.layer for box in component) + 1)]
    for box in component:
        rows[box.layer - first].append(box)
    _number(rows)
    best, fewest = [list(row) for row in rows], _crossings(rows)
    for sweep in range(_SWEEPS):
        if not fewest:
            break
        down = sweep % 2 == 0
        for row in rows if down else reversed(rows):
            row.sort(key=lambda box: _barycentre(box, down))
            _number([row])
        crossings = _crossings(rows)
        if crossings < fewest:
            best, fewest = [list(row) for row in rows], crossings
    _number(best)
    return best


def _number(rows: Iterable[Sequence[_Box]]) -> None:
    for row in rows:
        for place, box in enumerate(row):
            box.place = place


def _barycentre(box: _Box, down: bool) -> float:
    places = [line.upper.place for line in box.ins] if down else [line.lower.place for line in box.outs]
    return sum(places) / len(places) if places else box.place


def _crossings(rows: Sequence[Sequence[_Box]]) -> int:
    count = 0
    for row in rows:
        seen: list[int] = []
        for box in row:
            ends = sorted(line.lower.place for line in box.outs)
            count += sum(len(seen) - bisect_right(seen, end) for end in ends)
            for end in ends:
                insort(seen, end)
    return count


def _align(rows: Sequence[Sequence[_Box]], gap: float) -> None:
    """Set the centres: first packed, then each layer as close to its neighbours' means as the distances allow."""
    for row in rows:
        _settle(row, gap, [(0.0, 1.0)] * len(row))
    for sweep in range(2 * _SWEEPS):
        for row in rows if sweep % 2 == 0 else reversed(rows):
            # The last sweeps look both ways, which balances a box between what is above and what is below.
            both = sweep >= _SWEEPS
            wanted = []
            for box in row:
                ends = [(line.upper.x, line.weight) for line in box.ins] if both or sweep % 2 == 0 else []
                ends += [(line.lower.x, line.weight) for line in box.outs] if both or sweep % 2 else []
                weight = sum(weight for _, weight in ends)
                wanted.append((sum(x * w for x, w in ends) / weight, weight) if ends else (box.x, 0.1))
            _settle(row, gap, wanted)


def _settle(row: Sequence[_Box], gap: float, wanted: Sequence[tuple[float, float]]) -> None:
    """Set the centres with least weighted squares from the wishes, in order and `gap` apart (adjacent violators)."""
    offsets = [0.0]
    for left, right in itertools.pairwise(row):
        offsets.append(offsets[-1] + (left.width + right.width) / 2 + (gap if left.name and right.name else 0.0))
    blocks: list[tuple[float, float, int]] = []  # (mean, weight, boxes)
    for (x, weight), offset in zip(wanted, offsets, strict=True):
        mean, count = x - offset, 1
        while blocks and blocks[-1][0] >= mean:
            above, heavy, many = blocks.pop()
            mean = (above * heavy + mean * weight) / (heavy + weight)
            weight, count = heavy + weight, many + count
        blocks.append((mean, weight, count))
    means = itertools.chain.from_iterable(itertools.repeat(mean, count) for mean, _, count in blocks)
    for box, mean, offset in zip(row, means, offsets, strict=True):
        box.x = mean + offset


def _route(lines: Sequence[_Line], tops: Sequence[float], gap: float) -> tuple[Point, ...]:
    points: list[Point] = []
    for line in lines:
        upper, lower = line.upper, line.lower
        x = _port(upper, line, sorted(upper.outs, key=lambda other: other.lower.x))
        # A box may be shorter than its layer: first straight to the gap, so that no line crosses a neighbour.
        points += [Point(x, tops[upper.layer] + upper.height), Point(x, tops[upper.layer + 1] - gap)]
        if lower.outs and not lower.name:
            continue  # The next line begins at this bend, at the top of its layer.
        points.append(Point(_port(lower, line, sorted(lower.ins, key=lambda other: other.upper.x)), tops[lower.layer]))
    return tuple(points)


def _port(box: _Box, line: _Line, lines: Sequence[_Line]) -> float:
    """Return where a line meets a box: lines are spread around its centre, in the order of their other ends."""
    place = next(number for number, other in enumerate(lines) if other is line)
    return box.x + (place - (len(lines) - 1) / 2) * min(_PORT_GAP, box.width * 0.8 / len(lines))
