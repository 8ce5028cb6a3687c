"""The identity of a stage for a job that resumes."""

from __future__ import annotations

from typing import Any

import apache_beam as beam
import pytest
from apache_beam.coders import StrUtf8Coder, VarIntCoder
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.transforms import userstate, window
from apache_beam.transforms.trigger import AccumulationMode, AfterCount, AfterWatermark, Repeatedly

from arcbeam.model.plan import Plan
from arcbeam.translate import ParsedPipeline, translate
from arcbeam.translate.identity import unique
from arcbeam.translate.proto import pipeline_proto


class Keeping(beam.DoFn):
    BAG = userstate.BagStateSpec("bag", StrUtf8Coder())
    VALUE = userstate.ReadModifyWriteStateSpec("value", VarIntCoder())
    END = userstate.TimerSpec("end", userstate.TimeDomain.WATERMARK)

    def process(
        self,
        element: Any,
        bag: Any = beam.DoFn.StateParam(BAG),
        value: Any = beam.DoFn.StateParam(VALUE),
        end: Any = beam.DoFn.TimerParam(END),
    ) -> None:
        """Keeps nothing."""

    @userstate.on_timer(END)
    def over(self) -> None:
        """Does nothing."""


def plan(*before: str, fusion: bool = True) -> Plan:
    p = beam.Pipeline()
    made: Any = p | beam.Create([("a", 1)])
    for name in before:
        made |= name >> beam.Map(lambda pair: pair).with_output_types(tuple[str, int])
    windowed = made | beam.WindowInto(window.FixedWindows(10))
    _ = windowed | "Keep" >> beam.ParDo(Keeping())
    _ = windowed | "Group" >> beam.GroupByKey() | "Sum" >> beam.MapTuple(lambda key, values: (key, sum(values)))
    return translate(ParsedPipeline(pipeline_proto(p)), bounded=False, fusion=fusion)


@pytest.mark.contract("STORE-05")
def test_fusion_does_not_change_stateful_stages_identity() -> None:
    shapes = [
        {stage.uid: stage.shape for stage in each.stages if stage.shape}
        for each in (plan(), plan("Another"), plan("Another", "One more"), plan(fusion=False))
    ]
    assert all(shape == shapes[0] for shape in shapes)
    keyed = "string_utf8, varint>; fixed_windows"
    assert shapes[0] == {
        "Group": "kv<string_utf8, iterable<varint>>; fixed_windows",
        "Keep": f"kv<{keyed}; state bag: bag<string_utf8>; state value: read_modify_write<varint>; "
        "timer ts-end: event_time",
    }


@pytest.mark.contract("STORE-05")
def test_callback_on_window_expiration_changes_the_shape() -> None:
    p = beam.Pipeline()
    _ = p | beam.Create([("a", 1)]) | "Keep" >> beam.ParDo(Keeping())
    proto = pipeline_proto(p)
    before = translate(ParsedPipeline(proto), bounded=False).stages[-1].shape
    keep = next(each for each in proto.components.transforms.values() if each.unique_name == "Keep")
    payload = runner_pb.ParDoPayload.FromString(keep.spec.payload)
    payload.on_window_expiration_timer_family_spec = "ts-end"
    keep.spec.payload = payload.SerializeToString()
    after = translate(ParsedPipeline(proto), bounded=False).stages[-1].shape
    assert after == before.replace("timer ts-end: event_time", "timer ts-end: window expiration") != before


@pytest.mark.contract("STORE-05")
def test_trigger_changes_only_the_shape_of_groupings() -> None:
    def shapes(trigger: Any) -> dict[str, str]:
        p = beam.Pipeline()
        pairs = p | beam.Create([("a", 1)])
        windowed = pairs | beam.WindowInto(
            window.GlobalWindows(), trigger=trigger, accumulation_mode=AccumulationMode.DISCARDING
        )
        _ = windowed | "Keep" >> beam.ParDo(Keeping())
        _ = windowed | "Group" >> beam.GroupByKey() | "Sum" >> beam.MapTuple(lambda key, values: (key, sum(values)))
        return {
            stage.uid: stage.shape
            for stage in translate(ParsedPipeline(pipeline_proto(p)), bounded=False).stages
            if stage.shape
        }

    once, again = shapes(Repeatedly(AfterCount(2))), shapes(AfterWatermark(early=AfterCount(2)))
    assert once["Keep"] == again["Keep"]
    assert once["Group"] != again["Group"]


def test_stage_names_are_unique() -> None:
    assert unique(["a", "b", "a", "a"]) == ["a", "b", "a#2", "a#3"]
    for fusion in (True, False):
        uids = [stage.uid for stage in plan(fusion=fusion).stages]
        assert len(set(uids)) == len(uids)
        assert all(uids)
