"""Pictures of known shapes: golden files, stable ids for a page, and names that cannot leave their place."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace

import pytest

from arcbeam.explain import STYLE, as_live_svg, as_svg
from arcbeam.explain.picture import LivePicture
from arcbeam.model.plan import Plan, Transform
from tests.explain.plans import SHAPES, diamond, sides
from tests.golden import check_picture

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("shape", SHAPES)
def test_picture_is_its_golden_file(shape: Callable[[], Plan]) -> None:
    check_picture(shape.__name__, as_svg(shape()))


def test_live_picture_has_ids_and_empty_slots() -> None:
    root = ET.fromstring(as_live_svg(diamond(), prefix="p-"))
    ids = [element.attrib["id"] for element in root.iter() if "id" in element.attrib]
    assert len(ids) == len(set(ids))
    nodes = ["s0", "s1", "s2", "s3", "c0", "c1"]
    more = [f"{node}-more" for node in nodes if node.startswith("s")]
    edges = ["s0-c0", "c0-s1", "c0-s2", "s1-c1", "s2-c1", "c1-s3"]
    assert {f"p-{id}" for id in [*nodes, *edges, *(f"{node}-live" for node in nodes), *more]} < set(ids)
    slots = [text for text in root.iter(f"{SVG}text") if text.get("class") == "live"]
    assert [slot.text for slot in slots] == [None] * len([*nodes, *more])


def test_live_picture_is_filled_with_figures() -> None:
    svg = as_live_svg(diamond(), prefix="p-")
    picture = LivePicture.of(svg, "p-")
    unfilled, _ = picture.filled({})
    assert unfilled == svg
    filled, elements = picture.filled({"s1-live": ("5 < 6", ""), "c0-live": ("late", "held")})
    texts = {text.get("id"): (text.text, text.get("class")) for text in ET.fromstring(filled).iter(f"{SVG}text")}
    assert (texts["p-s1-live"], texts["p-c0-live"]) == (("5 < 6", "live"), ("late", "live held"))
    assert texts["p-s2-live"] == (None, "live")
    assert len(elements) == len(picture.slots)
    assert all(element in filled for element in elements.values())


def test_live_picture_has_no_inline_style() -> None:
    svg = as_live_svg(sides())
    assert "style" not in svg
    assert "prefers-color-scheme: dark" in STYLE
    assert STYLE in as_svg(sides())


def test_picture_refers_to_nothing_outside() -> None:
    for svg in (as_svg(sides()), as_live_svg(sides())):
        assert re.findall(r"https?://[^\"]+|@import|href", svg) == ["http://www.w3.org/2000/svg"]
        assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)", svg))


def test_hostile_names_are_inert() -> None:
    hostile = "</title><script>alert(1)</script>\"' onload='x\x00\ud800\u202e"
    plan = diamond()
    stage = replace(plan.stages[0], name=hostile, transforms=(Transform("t", hostile, hostile),))
    channel = replace(plan.channels[0], name=hostile, coder=hostile, windowing=hostile)
    changed = Plan(hostile, (stage, *plan.stages[1:]), (channel, *plan.channels[1:]))
    for svg in (as_svg(changed), as_live_svg(changed)):
        assert "\u202e" not in svg
        root = ET.fromstring(svg.encode())
        assert not [element for element in root.iter() if element.tag.endswith("script")]
        assert not [element for element in root.iter() if "onload" in element.attrib]
