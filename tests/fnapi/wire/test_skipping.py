"""The lengths of encoded values: against Beam's own examples of its standard coders, and its Python coders."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import apache_beam
import pytest
import yaml
from apache_beam import coders
from apache_beam.coders.coders import GlobalWindowCoder, IntervalWindowCoder
from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.runners.pipeline_context import PipelineContext
from apache_beam.transforms.window import GlobalWindow, IntervalWindow
from apache_beam.utils.timestamp import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from apache_beam.utils.windowed_value import PaneInfo, PaneInfoTiming, WindowedValue
from hypothesis import given
from hypothesis import strategies as st

from arcbeam.fnapi.wire.incoming import WholeElements
from arcbeam.fnapi.wire.skipping import CutShortError, UnknownCoderError, read_varint, skip_varint, skipper

_EXAMPLES = Path(apache_beam.__file__).parent / "portability" / "api" / "standard_coders.yaml"
_NOT_SKIPPED = {
    common_urns.coders.ROW.urn,
    common_urns.coders.STATE_BACKED_ITERABLE.urn,
    common_urns.coders.PARAM_WINDOWED_VALUE.urn,
}
"""Rows pass length-prefixed; iterables with a state token and parameterized values are never requested."""


def _coder(spec: Any, table: dict[str, Any]) -> str:
    id = f"c{len(table)}"
    proto = table[id] = runner_pb.Coder()
    proto.spec.urn = spec["urn"]
    proto.component_coder_ids[:] = [_coder(part, table) for part in spec.get("components", ())]
    return id


def _cases() -> list[Any]:
    cases = []
    for text in _EXAMPLES.read_text().split("\n---\n"):
        spec = yaml.safe_load(text)
        if spec and spec.get("nested", True) and spec["coder"]["urn"] not in _NOT_SKIPPED:
            cases += [
                pytest.param(spec["coder"], encoded.encode("latin1"), id=f"{spec['coder']['urn']}-{n}")
                for n, encoded in enumerate(spec["examples"])
            ]
    return cases


@pytest.mark.parametrize(("coder", "encoded"), _cases())
def test_standard_example_is_skipped_whole(coder: Any, encoded: bytes) -> None:
    table: dict[str, Any] = {}
    skip = skipper(table, _coder(coder, table))
    assert skip(encoded, 0) == len(encoded)
    assert skip(b"before" + encoded + b"after", 6) == 6 + len(encoded)
    for end in range(len(encoded)):
        with pytest.raises(CutShortError):
            skip(encoded[:end], 0)


def test_examples_cover_every_skipped_coder() -> None:
    tried = {case.values[0]["urn"] for case in _cases()}
    names = "BYTES STRING_UTF8 VARINT BOOL DOUBLE KV ITERABLE NULLABLE WINDOWED_VALUE TIMER INTERVAL_WINDOW"
    assert tried >= {getattr(common_urns.coders, name).urn for name in names.split()}


def test_unknown_coder_is_named() -> None:
    table: dict[str, Any] = {}
    with pytest.raises(UnknownCoderError, match="my:coder:v1"):
        skipper(table, _coder({"urn": "beam:coder:kv:v1", "components": [{"urn": "my:coder:v1"}] * 2}, table))


def test_elements_without_bytes_are_skipped_together() -> None:
    table: dict[str, Any] = {}
    id = _coder({"urn": "beam:coder:iterable:v1", "components": [{"urn": "beam:coder:global_window:v1"}]}, table)
    assert skipper(table, id)(b"\x7f\xff\xff\xff", 0) == 4


@given(st.integers(0, 2**64 - 1))
def test_varint_equals_that_of_the_sdk(number: int) -> None:
    signed = number - 2**64 if number >= 2**63 else number
    encoded = coders.VarIntCoder().encode(signed)
    assert read_varint(encoded, 0) == (number, len(encoded))
    assert skip_varint(encoded, 0) == len(encoded)


_PANES = st.builds(
    PaneInfo,
    st.booleans(),
    st.booleans(),
    st.sampled_from([PaneInfoTiming.EARLY, PaneInfoTiming.ON_TIME, PaneInfoTiming.LATE]),
    st.integers(0, 300),
    st.integers(0, 300),
)
_TIMES = st.one_of(st.sampled_from([MIN_TIMESTAMP, MAX_TIMESTAMP]), st.integers(-(10**9), 10**9).map(Timestamp.of))
_INTERVALS = st.builds(lambda start, size: IntervalWindow(start, start + size), st.integers(0, 9), st.integers(1, 9))
_VALUES = st.tuples(st.text(max_size=200), st.lists(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)), max_size=3))
_CODER = coders.TupleCoder([coders.StrUtf8Coder(), coders.IterableCoder(coders.NullableCoder(coders.VarIntCoder()))])


@given(
    st.lists(st.tuples(_VALUES, _TIMES, st.lists(_INTERVALS, max_size=3), _PANES), max_size=8),
    st.booleans(),
    st.lists(st.integers(0, 400), max_size=6),
)
def test_stream_is_cut_between_elements(elements: list[Any], global_window: bool, cuts: list[int]) -> None:
    window = GlobalWindowCoder() if global_window else IntervalWindowCoder()
    coder = coders.WindowedValueCoder(_CODER, window)
    encoded = [
        coder.encode(WindowedValue(value, time, (GlobalWindow(),) if global_window else windows, pane))
        for value, time, windows, pane in elements
    ]
    context = PipelineContext()
    id = context.coders.get_id(coder)
    whole = WholeElements(skipper(context.to_runner_api().coders, id))
    data = b"".join(encoded)
    places = [0, *sorted(cut for cut in cuts if cut <= len(data)), len(data)]
    received = b""
    for start, end in itertools.pairwise(places):
        received += whole.of(data[start:end])
        assert received in [b"".join(encoded[:n]) for n in range(len(encoded) + 1)]
    whole.end()
    assert received == data
    assert whole.count == len(encoded)


def test_stream_that_ends_in_an_element_is_an_error() -> None:
    whole = WholeElements(skip_varint)
    assert whole.of(b"\x01\xff") == b"\x01"
    with pytest.raises(CutShortError, match="1 bytes after the beginning"):
        whole.end()
