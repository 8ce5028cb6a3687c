"""The outputs of a worker: their ends."""

from __future__ import annotations

from typing import Any

import pytest
from apache_beam import coders
from apache_beam.coders.coders import GlobalWindowCoder, LengthPrefixCoder
from apache_beam.runners.pipeline_context import PipelineContext
from apache_beam.transforms.window import GlobalWindows

from arcbeam.fnapi.lost import SdkWorkerLostError
from arcbeam.fnapi.service.instruction import Output
from arcbeam.fnapi.stage.sinks import BlockSink
from arcbeam.harness.operations.encodedpairs import EncodedPairs
from tests.fnapi.stage.traps.test_bundle_traps import element


class _Alike(coders.TupleCoder):
    """May encode pairs in another way."""


_PAIR = coders.TupleCoder([coders.BytesCoder()] * 2)


@pytest.mark.parametrize(
    ("written", "read", "stays_encoded"),
    [
        (_PAIR, _PAIR, True),
        (LengthPrefixCoder(_PAIR), LengthPrefixCoder(_PAIR), False),
        (_PAIR, _Alike([coders.BytesCoder()] * 2), False),
    ],
    ids=["pairs", "with a prefix", "another coder"],
)
def test_only_plain_pairs_stay_encoded(written: Any, read: Any, stays_encoded: bool) -> None:
    context = PipelineContext()
    id = context.coders.get_id(coders.WindowedValueCoder(written, GlobalWindowCoder()))
    coder = coders.WindowedValueCoder(read, GlobalWindowCoder())
    sink = BlockSink(context.to_runner_api().coders, id, coder)
    pairs = [(b"k%d" % (n % 3), b"%d" % n) for n in range(50)]
    windowed = GlobalWindows.windowed_value
    data = b"".join(coder.get_impl().encode_nested(windowed(pair, 0)) for pair in pairs)
    (block,) = sink.blocks(Output("sink", data, True))
    assert isinstance(block, EncodedPairs) == stays_encoded
    assert block.values == pairs


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
