"""Display names of stages and channels."""

from __future__ import annotations

import inspect
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.runners.pipeline_context import PipelineContext
from apache_beam.transforms import trigger, window

from arcbeam.engine.grouping import triggers
from arcbeam.harness.bundle.strategies import trigger_of
from arcbeam.model.plan import Firings
from arcbeam.translate import describe
from tests.translate.plans import plan_of, source, winding


@pytest.mark.contract("PLAN-06")
@pytest.mark.parametrize("fusion", [True, False])
def test_names_have_no_internal_parts(fusion: bool) -> None:
    plan = plan_of(winding, fusion=fusion)
    for name in [*(s.name for s in plan.stages), *(c.name for c in plan.channels)]:
        assert name
        assert not name[0].isdigit()
        assert not name.endswith(".None")
        for internal in ("ref_", "pcollection_", "/Read", "/Write", "materialize:"):
            assert internal not in name


@pytest.mark.contract("PLAN-06")
def test_stage_that_only_moves_elements_is_named() -> None:
    plan = plan_of(lambda p: source(p, "a") | "One" >> beam.Reshuffle() | "Two" >> beam.Reshuffle() | beam.Map(str))
    assert [stage.name for stage in plan.stages if not stage.transforms] == ["One/RemoveRandomKeys + Two"]
    flat = plan_of(lambda p: [source(p, n) for n in "ab"] | beam.Flatten() | "End" >> beam.Map(str))
    assert {channel.name for channel in flat.channels} == {"Flatten"}


@pytest.mark.parametrize(
    ("unique", "name"),
    [
        ("16Side/Map(decode).None", "Side/Map(decode)"),
        ("4Tags.late", "Tags.late"),
        ("63 days.None", "3 days"),
        ("6With.s.None", "With.s"),
        ("Sum/Precombine.out", "Sum/Precombine"),
        ("ref_PCollection_1", "ref_PCollection_1"),
        ("", ""),
        ("12", "12"),
    ],
)
def test_names_of_pcollections(unique: str, name: str) -> None:
    assert describe.pcollection(unique) == name


_EARLY = trigger.Repeatedly(trigger.AfterCount(1))
_DISCARDING, _ACCUMULATING = trigger.AccumulationMode.DISCARDING, trigger.AccumulationMode.ACCUMULATING
_SINGLE, _SINGLE_OR, _LIST, _DICT = (
    beam.pvalue.AsSingleton,
    lambda of: beam.pvalue.AsSingleton(of, default_value=7),
    beam.pvalue.AsList,
    beam.pvalue.AsDict,
)


@pytest.mark.contract("ENG-05")
@pytest.mark.parametrize(
    ("view", "fires", "mode", "lateness", "expected"),
    [
        (_SINGLE, _EARLY, _DISCARDING, 0, Firings.LAST),
        (_SINGLE_OR, _EARLY, _ACCUMULATING, 0, Firings.LAST),
        (_LIST, _EARLY, _DISCARDING, 0, Firings.ALL),
        (_DICT, _EARLY, _ACCUMULATING, 0, Firings.ALL),
        (_SINGLE, None, _DISCARDING, 0, Firings.ALL),
        (_SINGLE, None, _DISCARDING, 9, Firings.ALL),
        (_SINGLE, None, _ACCUMULATING, 9, Firings.LAST),
        (_LIST, None, _ACCUMULATING, 9, Firings.ALL),
    ],
)
def test_which_firings_of_a_side_input_are_read(view: Any, fires: Any, mode: Any, lateness: int, expected: str) -> None:
    def make(p: beam.Pipeline) -> Any:
        side = p | "Side" >> beam.Create([(1, 2)])
        side |= beam.WindowInto(
            window.FixedWindows(5), trigger=fires, accumulation_mode=mode, allowed_lateness=lateness
        )
        return p | beam.Create([2]) | beam.Map(lambda x, of: x, view(side))

    assert [side.firings for stage in plan_of(make).stages for side in stage.side_inputs] == [expected]


_WHEN = {
    "default": "at the end",
    "never": "never",
    "always": "early, by elements",
    "element_count": "early, by elements",
    "after_processing_time": "early",
    "after_synchronized_processing_time": "early in a stream",
    "after_end_of_window": "as the early firings",
    "repeat": "as any part",
    "or_finally": "as any part",
    "after_any": "as any part",
    "after_all": "as all parts",
    "after_each": "as the first part",
}
"""When each trigger may fire first. A trigger that is new in Beam's protos belongs here, in `describe`, and so on: see
"a trigger" in docs/developers/where.md."""
_KINDS = [field.name for field in runner_pb.Trigger.DESCRIPTOR.oneofs_by_name["trigger"].fields]
_LEAVES = {
    "default": runner_pb.Trigger(default=runner_pb.Trigger.Default()),
    "element_count": runner_pb.Trigger(element_count=runner_pb.Trigger.ElementCount(element_count=3)),
    "after_processing_time": runner_pb.Trigger(after_processing_time=runner_pb.Trigger.AfterProcessingTime()),
}
_IN_PARTS = sorted(kind for kind, when in _WHEN.items() if when.startswith("as "))


def made(kind: str, *parts: Any) -> Any:
    """A trigger of a kind whose parts, one after the other, are these, or the last of them."""
    found = runner_pb.Trigger()
    spec = getattr(found, kind)
    spec.SetInParent()
    left = list(parts)
    for field in sorted(spec.DESCRIPTOR.fields, key=lambda field: field.number):
        if field.message_type is not runner_pb.Trigger.DESCRIPTOR:
            continue
        if field.is_repeated:
            getattr(spec, field.name).extend(left)
        else:
            getattr(spec, field.name).CopyFrom(left.pop(0) if len(left) > 1 else left[0])
    return found


def test_every_trigger_of_beam_is_described() -> None:
    assert sorted(_WHEN) == sorted(_KINDS)


@pytest.mark.parametrize("kind", _KINDS)
def test_parts_of_trigger_are_complete(kind: str) -> None:
    one, other = _LEAVES["element_count"], _LEAVES["after_processing_time"]
    spec = runner_pb.Trigger.DESCRIPTOR.fields_by_name[kind].message_type
    fields = [field for field in spec.fields if field.message_type is runner_pb.Trigger.DESCRIPTOR]
    assert (
        describe.parts_of(made(kind, one, other))
        == [one, other][: len(fields) if kind == "repeat" else 2 * len(fields)]
    )
    assert bool(fields) == (kind in _IN_PARTS)


@pytest.mark.parametrize("kind", _KINDS)
def test_when_a_trigger_may_fire_first(kind: str) -> None:
    early, late = _LEAVES["after_processing_time"], _LEAVES["default"]
    match _WHEN[kind]:
        case "as any part":
            expected = {True: [(early, late), (late, early), (early, early)], False: [(late, late)]}
        case "as all parts":
            expected = {True: [(early, early)], False: [(early, late), (late, early), (late, late)]}
        case "as the first part" | "as the early firings":
            expected = {True: [(early, late), (early, early)], False: [(late, early), (late, late)]}
        case when:
            assert describe.may_fire_early(made(kind)) == (when in ("early", "early, by elements"))
            assert describe.may_fire_early(made(kind), streaming=True) == when.startswith("early")
            return
    for answer, pairs in expected.items():
        for pair in pairs:
            if kind != "repeat" or pair[0] == pair[1]:
                assert describe.may_fire_early(made(kind, *pair)) == answer, pair


@pytest.mark.parametrize("kind", _KINDS)
def test_count_trigger_prevents_early_combining(kind: str) -> None:
    count, other = _LEAVES["element_count"], _LEAVES["default"]
    if kind in _IN_PARTS:
        with_count = [made(kind, count)] if kind == "repeat" else [made(kind, count, other), made(kind, other, count)]
        assert not any(describe.may_lift(runner_pb.WindowingStrategy(trigger=each), False) for each in with_count)
        plain = made(kind, other, other)
    else:
        plain = made(kind)
    counts = _WHEN[kind] == "early, by elements"
    closes = describe.may_close(plain, late=False)
    assert describe.may_lift(runner_pb.WindowingStrategy(trigger=plain), False) == (not counts and not closes)


def strategies(trigger: Any, lateness: int) -> Any:
    return runner_pb.WindowingStrategy(trigger=trigger, allowed_lateness=lateness)


@pytest.mark.contract("OPS-04")
@pytest.mark.parametrize("kind", _KINDS)
def test_trigger_that_may_close_a_window_prevents_early_combining(kind: str) -> None:
    closes, stays = _LEAVES["after_processing_time"], _LEAVES["default"]
    pairs = [(closes, stays), (stays, closes), (closes, closes), (stays, stays)]
    match kind:
        case "after_any":
            expected = [True, True, True, False]
        case "after_all" | "after_each":
            expected = [False, False, True, False]
        case "or_finally":
            expected = [True] * 4
        case _:
            alone = made(kind, stays, stays)
            always = kind in ("element_count", "after_processing_time", "after_synchronized_processing_time")
            assert describe.may_close(alone, late=True) == describe.may_close(alone, late=False) == always
            return
    for pair, answer in zip(pairs, expected, strict=True):
        assert describe.may_close(made(kind, *pair), late=False) == answer
        assert describe.may_lift(strategies(made(kind, *pair), 0), False) == (not answer)
        assert describe.may_lift(strategies(made(kind, *pair), 0), True)


def test_trigger_without_late_firings_closes_a_window_with_lateness() -> None:
    at_end = runner_pb.Trigger(after_end_of_window=runner_pb.Trigger.AfterEndOfWindow())
    assert describe.may_lift(strategies(at_end, 0), False)
    assert not describe.may_lift(strategies(at_end, 1), False)
    assert describe.may_lift(strategies(made("after_end_of_window", _LEAVES["after_processing_time"]), 1), False)


@pytest.mark.parametrize("kind", _KINDS)
def test_every_trigger_of_beam_has_a_state_machine(kind: str) -> None:
    assert isinstance(trigger_of(made(kind, _LEAVES["element_count"], _LEAVES["default"])), triggers.Trigger)


def test_triggers_of_the_python_sdk_are_described() -> None:
    part = trigger.AfterCount(2)
    arguments: dict[str, tuple[Any, ...]] = {
        "AfterCount": (2,),
        "Repeatedly": (part,),
        "AfterAny": (part, part),
        "AfterAll": (part, part),
        "AfterEach": (part, part),
        "OrFinally": (part, part),
        "AfterWatermark": (part, part),
    }
    kinds = {
        found(*arguments.get(name, ())).to_runner_api(PipelineContext()).WhichOneof("trigger")
        for name, found in vars(trigger).items()
        if isinstance(found, type) and issubclass(found, trigger.TriggerFn) and not inspect.isabstract(found)
    }
    assert kinds <= set(_WHEN)
    assert len(kinds) >= 11


def _coders(**coders: tuple[str, tuple[str, ...]]) -> Any:
    """Return components with coders: a URN, and the ids of its components."""
    found = runner_pb.Components()
    for id, (urn, parts) in coders.items():
        found.coders[id].spec.urn = urn
        found.coders[id].component_coder_ids.extend(parts)
    return found


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ("kv", True),
        ("alike", True),
        ("turned", False),
        ("first", False),
        ("none", False),
        ("longer", False),
        ("nested", False),
        ("iterable", False),
        ("int", False),
    ],
)
def test_coders_are_the_same_with_all_components(other: str, same: bool) -> None:
    """Another SDK may write a tuple coder with more components, or with fewer."""
    components = _coders(
        int=("varint", ()),
        text=("string", ()),
        number=("varint", ()),
        kv=("tuple", ("int", "text")),
        alike=("tuple", ("number", "text")),
        turned=("tuple", ("text", "int")),
        first=("tuple", ("int",)),
        none=("tuple", ()),
        longer=("tuple", ("int", "text", "text")),
        nested=("tuple", ("int", "kv")),
        iterable=("iterable", ("int", "text")),
    )
    assert describe.same_coder(components, "kv", other) == same
    assert describe.same_coder(components, other, "kv") == same
