"""Representations of hand-made plans: complete, aligned, and a picture without overlapping boxes."""

from __future__ import annotations

import itertools
import json
import random
import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from arcbeam.explain import as_json, as_svg, as_text
from arcbeam.model.observers import Observer, Policy
from arcbeam.model.plan import Channel, Plan, Routing, SideInput, Stage, TimeDomain, TimerFamily, Transform
from arcbeam.model.timestamps import Duration
from tests.golden import check_message

SVG = "{http://www.w3.org/2000/svg}"


def transform(id: str, name: str) -> Transform:
    return Transform(id, name, "beam:transform:pardo:v1")


@pytest.fixture
def plan() -> Plan:
    """Return impulse -> grouped -> a stateful stage with a side input and no output."""
    return Plan(
        name="flights <2013>",
        stages=(
            Stage("s0", "Read", (transform("t0", "Read/Split"), transform("t1", "Read/Parse")), b"ab", None, (0,)),
            Stage("s1", "Airports", (transform("t2", "Airports"),), b"", None, (1,)),
            Stage(
                "s2",
                "Join",
                (transform("t3", "Join & Count"),),
                b"",
                0,
                (),
                side_inputs=(SideInput("t3", "side0", 1),),
                states=(("t3", "total"),),
                timers=(
                    TimerFamily("t3", "flush", TimeDomain.EVENT),
                    TimerFamily("t3", "over", TimeDomain.EVENT, expiration=True),
                ),
                time_sorted=True,
            ),
        ),
        channels=(
            Channel(0, "Read/Parse.out", Routing.KEYED, "KV<str, Flight>", "fixed(1h)", ("s0",), ("s2",)),
            Channel(1, "Airports.out", Routing.SIDE, "Airport", "global", ("s1",)),
        ),
    )


def boxes(svg: str) -> list[tuple[float, float, float, float]]:
    """Return (left, top, right, bottom) of every stage and channel."""
    found = []
    for group in ET.fromstring(svg).iter(f"{SVG}g"):
        if group.get("class", "").split(" ")[0] in {"stage", "channel"}:
            rect = group.find(f"{SVG}rect")
            assert rect is not None
            x, y, width, height = (float(rect.attrib[key]) for key in ("x", "y", "width", "height"))
            found.append((x, y, x + width, y + height))
    return found


def random_plan(seed: int) -> Plan:
    """Return a valid plan of up to 14 stages, with flattens, fan-outs, side inputs, and unconnected parts."""
    rng = random.Random(seed)
    stages: list[Stage] = []
    channels: list[Channel] = []
    for number in range(rng.randint(1, 14)):
        mains = [c.index for c in channels if c.routing not in (Routing.SIDE, Routing.SIDE_KEYED)]
        sides = [c.index for c in channels if c.index not in mains]
        id = f"s{number}"
        source = rng.choice(mains) if mains and rng.random() < 0.8 else None
        sink = len(channels)
        names = tuple(transform(f"t{i}", "/".join(["Segment"] * rng.randint(1, 9))) for i in range(rng.randint(0, 20)))
        used = rng.sample(sides, min(len(sides), rng.randint(0, 2)))
        stages.append(Stage(id, id, names, b"", source, (sink,), tuple(SideInput("t0", f"i{i}", i) for i in used)))
        channels.append(Channel(sink, f"p{sink}", rng.choice(list(Routing)), "coder", "global", (id,)))
    return Plan(f"random {seed}", tuple(stages), tuple(channels))


def test_text_has_all_names(plan: Plan) -> None:
    text = as_text(plan)
    assert text.startswith("plan 'flights <2013>': 3 stages, 2 channels, 1 exchange\n")
    assert "s2  Join  [stateful, sorted by time]" in text
    assert "    reads   impulse" in text
    assert "    reads   c0  keyed  Read/Parse.out" in text
    assert "    sides   c1  side  Airports.out  as 'side0' of Join & Count" in text
    assert "    state   total  of Join & Count" in text
    assert "    timers  flush  event time, of Join & Count" in text
    assert "            over   window expiration, of Join & Count" in text
    assert "c0       keyed *  s0    s2         KV<str, Flight>  fixed(1h)  Read/Parse.out" in text
    assert "c1       side     s1    s2 (side)  Airport          global     Airports.out" in text
    assert all(line == line.rstrip() for line in text.splitlines())


def test_json_has_every_field_and_no_payload(plan: Plan) -> None:
    value = json.loads(json.dumps(as_json(plan)))
    assert [stage["id"] for stage in value["stages"]] == ["s0", "s1", "s2"]
    assert value["stages"][0]["payload_bytes"] == 2
    assert value["stages"][2]["timers"] == [
        {"transform": "t3", "family": "flush", "domain": "event", "expiration": False},
        {"transform": "t3", "family": "over", "domain": "event", "expiration": True},
    ]
    assert value["channels"][0]["exchange"] is True
    assert value["channels"][1]["side_consumers"] == ["s2"]


def test_empty_plan_has_no_boxes() -> None:
    empty = Plan("nothing", (), ())
    assert as_text(empty) == "plan 'nothing': 0 stages, 0 channels, 0 exchanges\n"
    assert as_json(empty) == {
        "name": "nothing",
        "stages": [],
        "channels": [],
        "in_one_task": [],
        "in_one_task_bytes": 0,
        "warnings": [],
    }
    assert as_text(replace(empty, warnings=("it grows",))).endswith("\n\nwarning: it grows\n")
    assert boxes(as_svg(empty)) == []


def test_picture_shows_stages_routings_and_side_inputs(plan: Plan) -> None:
    root = ET.fromstring(as_svg(plan))
    titles = {title.text for title in root.iter(f"{SVG}title")}
    texts = {element.text or "".join(child.tail or "" for child in element) for element in root.iter(f"{SVG}text")}
    assert {"s0", "s1", "s2", "keyed · c0", "side · c1", "state: total", "stateful, sorted by time"} <= texts
    assert "s2 reads c1 as 'side0' of Join & Count" in titles
    edges = [path for path in root.iter(f"{SVG}path") if "edge" in path.get("class", "")]
    assert len(edges) == 4
    assert [("wide" in classes, "dashed" in classes) for classes in (e.attrib["class"].split() for e in edges)] == [
        (True, False),
        (False, False),
        (True, False),
        (False, True),
    ]


@pytest.mark.parametrize("seed", range(12))
def test_no_two_boxes_overlap_and_all_are_inside(seed: int) -> None:
    svg = as_svg(random_plan(seed))
    root = ET.fromstring(svg)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    found = boxes(svg)
    assert len(found) == sum(map(len, (random_plan(seed).stages, random_plan(seed).channels)))
    for left, top, right, bottom in found:
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height
    for (l1, t1, r1, b1), (l2, t2, r2, b2) in itertools.combinations(found, 2):
        assert r1 < l2 or r2 < l1 or b1 < t2 or b2 < t1


def test_long_names_are_shortened_except_in_tooltips() -> None:
    name = "Outer/" * 12 + "ParDo(" + "x" * 60 + ")"
    stage = Stage("s0", name, (transform("t0", "Outer/" * 12 + "Inner"), transform("t1", name)), b"", None, ())
    svg = as_svg(Plan("p", (stage,), ()))
    assert "</title>…/Outer/Outer/Outer/Outer/Outer/Inner</text>" in svg
    assert f"<title>{name}\n" in svg
    read = "Events/ReadFromKafka(events of Europe)/Map(decode the value)"
    svg = as_svg(Plan("p", (Stage("s0", read, (transform("t0", read),), b"", None, ()),), ()))
    assert "</title>…/ReadFromKafka…/Map(decode the value)</text>" in svg
    assert len(max(re.findall("</title>([^<]+)</text>", svg), key=len)) <= 38


def test_one_long_name_is_shortened_in_its_middle() -> None:
    name = "a" * 30 + "b" * 30
    svg = as_svg(Plan("p", (Stage("s0", name, (transform("t0", name),), b"", None, ()),), ()))
    assert f"</title>{'a' * 18}…{'b' * 19}</text>" in svg


@pytest.mark.contract("ENG-09")
def test_scripted_stage_is_not_an_impulse(plan: Plan) -> None:
    read, *others = plan.stages
    scripted = replace(plan, stages=(replace(read, scripted=True), *others))
    assert as_text(plan).count("impulse") == as_svg(plan).count("impulse") == 2
    assert as_text(scripted).count("impulse") == as_svg(scripted).count("impulse") == 1
    assert "reads   script" in as_text(scripted)
    assert ">script<" in as_svg(scripted)
    assert [stage["scripted"] for stage in as_json(scripted)["stages"]] == [True, False, False]


@pytest.mark.contract("WM-01")
def test_observers_are_shown_with_stages_they_affect(plan: Plan) -> None:
    first, airports, join = plan.stages
    below = Observer("Below", Duration(0))
    clicks = Observer("Clicks", Duration(90_000_000), Policy.MAX, (below,))
    again = Stage("s3", "Again", (), b"", 2, (3,), observed={3: (Observer("Again", Duration(5)),)})
    last = Stage("s4", "Last", (), b"", 3, ())
    unbounded = replace(
        plan,
        bounded=False,
        stages=(replace(first, observed={0: (clicks,)}), airports, replace(join, sinks=(2,)), again, last),
        channels=(
            *plan.channels,
            Channel(2, "joined", Routing.SPREAD, producers=("s2",), consumers=("s3",)),
            Channel(3, "again", Routing.SPREAD, producers=("s3",), consumers=("s4",)),
        ),
    )
    text = as_text(unbounded)
    assert "[observes time]" in text
    lines = [line.split() for line in text.splitlines() if "(observed event time" in line]
    check_message("explain-observers", "\n".join(" ".join(words) for words in lines))
    assert "time: Below, Clicks" in as_svg(unbounded)

    assert as_json(unbounded)["stages"][0]["observers"][1] == {
        "name": "Clicks",
        "delay_us": 90_000_000,
        "policy": "max",
        "of_inputs": None,
        "quantile": None,
        "max_skew_us": None,
        "max_jump_us": None,
        "confirmed_by": None,
        "idle_after_us": None,
        "decides": ["s2", "s3"],
    }
    bounded = replace(plan, stages=(replace(first, observed={0: (clicks,)}), airports, join))
    assert "event times only: the input is bounded" in as_text(bounded)


@pytest.mark.contract("WM-01", "WM-04")
def test_robust_observers_are_shown(plan: Plan) -> None:
    first, *others = plan.stages
    hour = Duration(3_600_000_000)
    robust = (
        Observer("Skew", hour, max_skew=hour),
        Observer("Jump", hour, max_jump=hour, confirmed_by=5),
        Observer("Idle", hour, quantile=0.99, idle_after=hour),
    )
    observed = replace(plan, bounded=False, stages=(replace(first, observed={0: robust}), *others))
    text = as_text(observed)
    lines = [line.split() for line in text.splitlines() if "(observed event time" in line]
    check_message("explain-robust-observers", "\n".join(" ".join(words) for words in lines))
    (skew, jump, idle) = as_json(observed)["stages"][0]["observers"]
    assert skew["max_skew_us"] == jump["max_jump_us"] == idle["idle_after_us"] == hour
    assert (skew["confirmed_by"], jump["confirmed_by"], idle["quantile"]) == (None, 5, 0.99)
