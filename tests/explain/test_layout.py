"""The layout: layers, distances, routes, crossings, and the same result in every process."""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import subprocess
import sys
import time

import pytest

from arcbeam.explain import as_svg
from arcbeam.explain.layout import PictureLayout, Point, Size, lay_out
from tests.explain.plans import large

BOX = Size(100.0, 40.0)
GAP = Size(20.0, 30.0)
DIGEST = (
    "import hashlib; from arcbeam.explain import as_svg; from tests.explain.plans import large; "
    "print(hashlib.sha256(as_svg(large()).encode()).hexdigest())"
)


def graph(nodes: int, seed: int = 33) -> tuple[dict[str, Size], list[tuple[str, str]]]:
    """Return a random acyclic graph: edges mostly to near nodes, some from far above."""
    rng = random.Random(seed)
    sizes = {f"n{number}": Size(rng.choice([80.0, 100.0]), rng.choice([40.0, 90.0])) for number in range(nodes)}
    edges = {(f"n{rng.randrange(max(0, end - 12), end)}", f"n{end}") for end in range(1, nodes)}
    edges |= {(f"n{rng.randrange(0, end)}", f"n{end}") for end in range(1, nodes) if rng.random() < 0.1}
    return sizes, sorted(edges)


def crossings(layout: PictureLayout) -> int:
    """Return the pairs of curves that cross, gap by gap."""
    curves = [(route[i].y, route[i].x, route[i + 1].x) for route in layout.routes for i in range(1, len(route) - 1, 2)]
    return sum(
        (x1 - x2) * (end1 - end2) < 0
        for (y1, x1, end1), (y2, x2, end2) in itertools.combinations(curves, 2)
        if y1 == y2
    )


def test_diamond_is_symmetric() -> None:
    layout = lay_out(dict.fromkeys("abcd", BOX), [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")], GAP)
    assert layout.corners["a"].x == pytest.approx(60.0)
    assert layout.corners["d"].x == pytest.approx(60.0)
    assert (layout.corners["b"], layout.corners["c"]) == (Point(0.0, 70.0), Point(120.0, 70.0))
    assert layout.size == Size(220.0, 180.0)


def test_source_of_one_reader_is_next_to_it() -> None:
    layout = lay_out(dict.fromkeys("absc", BOX), [("a", "b"), ("b", "c"), ("s", "c")], GAP)
    assert layout.corners["s"].y == layout.corners["b"].y


def test_reader_of_a_source_with_two_readers_is_next_to_that() -> None:
    edges = [("a", "b"), ("a", "c"), ("c", "d"), ("d", "e"), ("b", "e")]
    layout = lay_out(dict.fromkeys("abcde", BOX), edges, GAP)
    assert [round(layout.corners[name].y / 70.0) for name in "abcde"] == [0, 1, 1, 2, 3]


def test_empty_graph_has_no_size() -> None:
    assert lay_out({}, [], GAP) == PictureLayout({}, (), Size(0.0, 0.0))


@pytest.mark.parametrize("seed", range(8))
def test_boxes_are_apart_and_edges_go_down(seed: int) -> None:
    sizes, edges = graph(60, seed)
    layout = lay_out(sizes, edges, GAP)
    for one, two in itertools.combinations(sizes, 2):
        (x1, y1), (x2, y2) = layout.corners[one], layout.corners[two]
        apart = x1 + sizes[one].width <= x2 or x2 + sizes[two].width <= x1
        assert apart or y1 + sizes[one].height <= y2 or y2 + sizes[two].height <= y1
    for (start, end), route in zip(edges, layout.routes, strict=True):
        assert route[0].y == layout.corners[start].y + sizes[start].height
        assert route[-1].y == layout.corners[end].y
        assert [point.y for point in route] == sorted(point.y for point in route)
        for number, (top, bottom) in enumerate(itertools.pairwise(route)):
            vertical = number % 2 == 0
            assert not vertical or top.x == bottom.x
            crossed = [
                name
                for name, (x, y) in layout.corners.items()
                if vertical and name != start and x < top.x < x + sizes[name].width and top.y <= y < bottom.y
            ]
            assert not crossed


def test_no_crossing_in_a_tree() -> None:
    edges = [(f"n{(child - 1) // 3}", f"n{child}") for child in range(1, 40)]
    shuffled = random.Random(1).sample(edges, len(edges))
    assert crossings(lay_out({f"n{number}": BOX for number in range(40)}, shuffled, GAP)) == 0


def test_200_stages_have_few_crossings() -> None:
    sizes, edges = graph(200)
    assert crossings(lay_out(sizes, edges, GAP)) < 50  # 38


def test_200_stages_take_less_than_200_ms() -> None:
    plan = large()
    spent = []
    for _ in range(3):
        start = time.process_time()
        as_svg(plan)
        spent.append(time.process_time() - start)
    assert min(spent) < 0.2


def test_picture_is_the_same_in_every_process() -> None:
    found = {
        subprocess.run(
            [sys.executable, "-c", DIGEST],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert found == {hashlib.sha256(as_svg(large()).encode()).hexdigest()}
