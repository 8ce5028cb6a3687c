"""The outputs of a worker: their ends."""

from __future__ import annotations

import pytest
from apache_beam import coders
from apache_beam.coders.coders import GlobalWindowCoder
from apache_beam.runners.pipeline_context import PipelineContext

from arcbeam.fnapi.lost import SdkWorkerLostError
from arcbeam.fnapi.service.instruction import Output
from arcbeam.fnapi.stage.sinks import BlockSink
from tests.fnapi.stage.traps.test_bundle_traps import element


def test_output_ends_once() -> None:
    context, coder = PipelineContext(), coders.WindowedValueCoder(coders.BytesCoder(), GlobalWindowCoder())
    id = context.coders.get_id(coder)
    sink = BlockSink(context.to_runner_api().coders, id, coder)
    some = Output("sink", element(b"some"), True)
    assert [len(block.values) for block in sink.blocks(some)] == [1]
    assert not list(sink.blocks(Output("sink", b"", True))), "says nothing new"
    with pytest.raises(SdkWorkerLostError, match="continues an output of 'sink' that it has ended"):
        list(sink.blocks(some))
    sink.begin()
    assert [len(block.values) for block in sink.blocks(some)] == [1]
