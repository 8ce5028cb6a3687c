"""Hand-made plans of known shapes for pictures: a chain, a diamond, side inputs, several components, 200 stages."""

from __future__ import annotations

import random
from collections.abc import Sequence

from arcbeam.model.plan import Channel, Plan, Routing, SideInput, Stage, Transform


class Builder:
    """Collects stages, each with one output; `add` returns the index of its channel."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.stages: list[Stage] = []
        self.channels: list[Channel] = []

    def add(
        self, name: str, source: int | None = None, routing: Routing = Routing.KEYED, sides: Sequence[int] = ()
    ) -> int:
        sink, number = len(self.channels), len(self.stages)
        transform = Transform(f"t{number}", name, "beam:transform:pardo:v1")
        inputs = tuple(SideInput(transform.id, f"side{i}", i) for i in sides)
        self.stages.append(Stage(f"s{number}", name, (transform,), b"", source, (sink,), inputs))
        self.channels.append(Channel(sink, f"{name}.out", routing, "KV<str, int>", "global", (f"s{number}",)))
        return sink

    def end(self, name: str, source: int, sides: Sequence[int] = ()) -> None:
        self.add(name, source, sides=sides)
        self.channels.pop()
        last = self.stages.pop()
        self.stages.append(Stage(last.id, name, last.transforms, b"", source, (), last.side_inputs))

    def plan(self) -> Plan:
        return Plan(self.name, tuple(self.stages), tuple(self.channels))


def chain() -> Plan:
    """Return four stages, one after another."""
    builder = Builder("chain")
    channel = builder.add("Read", routing=Routing.SPREAD)
    channel = builder.add("Parse", channel)
    channel = builder.add("Count/Group", channel, Routing.GROUPED)
    builder.end("Write", channel)
    return builder.plan()


def diamond() -> Plan:
    """Return a stage with two branches, and a stage that joins them."""
    builder = Builder("diamond")
    read = builder.add("Read", routing=Routing.FORWARD)
    left, right = builder.add("Left", read), builder.add("Right", read)
    merged = builder.plan()
    both = Channel(left, "both", Routing.KEYED, "KV<str, int>", "global", ("s1", "s2"))
    stages = list(merged.stages)
    stages[2] = Stage("s2", "Right", stages[2].transforms, b"", read, (left,))
    join = Stage("s3", "Join", (Transform("t3", "Join", "beam:transform:pardo:v1"),), b"", left, ())
    del right
    return Plan("diamond", (*stages, join), (merged.channels[read], both))


def sides() -> Plan:
    """Return a chain whose last stages read two side inputs, one of them from far above."""
    builder = Builder("sides")
    rates = builder.add("Rates", routing=Routing.SIDE)
    names = builder.add("Names", routing=Routing.SIDE_KEYED)
    channel = builder.add("Read", routing=Routing.SPREAD)
    channel = builder.add("Convert", channel, Routing.GROUPED, [rates])
    channel = builder.add("Sum", channel, Routing.KEYED)
    builder.end("Label", channel, [names, rates])
    return builder.plan()


def components() -> Plan:
    """Return three unconnected parts: a chain, a pair, and a single stage."""
    builder = Builder("components")
    first = builder.add("A/Read", routing=Routing.SPREAD)
    second = builder.add("B/Read", routing=Routing.GROUPED)
    first = builder.add("A/Map", first)
    builder.end("A/Write", first)
    builder.end("B/Write", second)
    builder.stages.append(Stage("s5", "C", (Transform("t5", "C", "beam:transform:pardo:v1"),), b"", None, ()))
    return builder.plan()


def large(stages: int = 200) -> Plan:
    """Return a plan of many stages, some with side inputs from far above; always the same."""
    rng = random.Random(33)
    builder = Builder("large")
    mains: list[int] = []
    sides: list[int] = []
    for number in range(stages):
        source = rng.choice(mains[-12:]) if mains and rng.random() < 0.95 else None
        used = [rng.choice(sides)] if sides and rng.random() < 0.1 else []
        side = rng.random() < 0.1
        (sides if side else mains).append(
            builder.add(f"Step{number}", source, Routing.SIDE if side else Routing.KEYED, used)
        )
    return builder.plan()


SHAPES = (chain, diamond, sides, components)
