"""Elements that are cut from a stream together: the same as those that Beam's coder reads one after the other."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest
from apache_beam import coders
from apache_beam.coders.coder_impl import create_InputStream
from apache_beam.coders.coders import GlobalWindowCoder, IntervalWindowCoder
from apache_beam.runners.pipeline_context import PipelineContext
from apache_beam.transforms.window import GlobalWindow, IntervalWindow
from apache_beam.utils.timestamp import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from apache_beam.utils.windowed_value import PANE_INFO_UNKNOWN, PaneInfo, PaneInfoTiming, WindowedValue
from hypothesis import given
from hypothesis import strategies as st

from arcbeam.fnapi.wire import runs as module
from arcbeam.fnapi.wire.runs import ElementRun, Runs
from arcbeam.fnapi.wire.skipping import CutShortError, skipper
from arcbeam.fnapi.wire.skippingmany import skipper_of_many
from arcbeam.fnapi.wire.times import micros_of

_CODERS: list[tuple[Any, Any]] = [
    (coders.BytesCoder(), lambda r: r.randbytes(r.choice([0, 1, 5, 5, 130, 20_000]))),
    (coders.VarIntCoder(), lambda r: r.choice([0, 127, 128, -1, 2**62])),
    (coders.TupleCoder([coders.BytesCoder(), coders.VarIntCoder()]), lambda r: (r.randbytes(r.randrange(9)), 300)),
    (
        coders.TupleCoder([coders.FloatCoder(), coders.IterableCoder(coders.BytesCoder())]),
        lambda r: (r.random(), [r.randbytes(r.randrange(3))] * r.randrange(3)),
    ),
    (coders.TupleCoder([coders.BooleanCoder(), coders.NullableCoder(coders.BytesCoder())]), lambda r: (True, None)),
]
_PANE = PaneInfo(True, False, PaneInfoTiming.EARLY, 3, 0)


def _protos(coder: Any) -> tuple[Any, str]:
    context = PipelineContext()
    id = context.coders.get_id(coder)
    return context.to_runner_api().coders, id


def _values(coder: Any, data: bytes) -> list[Any]:
    stream, impl, found = create_InputStream(data), coder.get_impl(), []
    while stream.size() > 0:
        found.append(impl.decode_from_stream(stream, True))
    return found


def _read(runs: Runs, coder: Any, message: bytes) -> tuple[list[Any], int]:
    """Return the values with their times and stamps, and how many of them were in runs."""
    found: list[Any] = []
    together = 0
    for part in runs.of(message):
        if isinstance(part, ElementRun):
            times = [part.micros] * part.count if isinstance(part.micros, int) else part.micros
            values = _values(coder.wrapped_value_coder, part.values)
            encode = coder.wrapped_value_coder.get_impl().encode_nested
            assert part.ends.tolist() == list(itertools.accumulate(len(encode(value)) for value in values))
            assert len(values) == part.count
            found += [(value, time, part.stamp) for value, time in zip(values, times, strict=True)]
            together += part.count
        else:
            found += [(e.value, e.timestamp_micros, _stamp(coder, e)) for e in _values(coder, part)]
    return found, together


def _stamp(coder: Any, element: Any) -> bytes:
    whole: bytes = coder.get_impl().encode_nested(element)
    value: bytes = coder.wrapped_value_coder.get_impl().encode_nested(element.value)
    return whole[8 : len(whole) - len(value)]


@given(st.integers(0, 2**32), st.sampled_from(range(len(_CODERS))), st.booleans(), st.booleans())
def test_stream_is_read_as_by_the_coder(seed: int, which: int, times_differ: bool, small: bool) -> None:
    r = random.Random(seed)
    value_coder, value = _CODERS[which]
    coder = coders.WindowedValueCoder(value_coder, IntervalWindowCoder())
    elements = []
    for _ in range(r.randrange(5)):
        windows, pane = [IntervalWindow(0, r.randrange(1, 300))] * r.randrange(3), r.choice([PANE_INFO_UNKNOWN, _PANE])
        time = r.choice([MIN_TIMESTAMP, MAX_TIMESTAMP, Timestamp(r.randrange(-9, 9))])
        for _ in range(r.choice([1, 3, 20, 60])):
            at = Timestamp(r.randrange(-9, 9)) if times_differ else time
            elements.append(WindowedValue(value(r), at, windows, pane))
    data = b"".join(coder.get_impl().encode_nested(each) for each in elements)
    cuts = sorted(r.choices(range(len(data) + 1), k=r.randrange(4)))
    protos, id = _protos(coder)
    runs = Runs(protos, id)
    found: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        if small:
            patch.setattr(module, "_STEP_BYTES_MAX", r.choice([40, 300]))
            patch.setattr(module, "_STEP_BYTES_MIN", r.choice([10, 40]))
            patch.setattr(module, "_ELEMENTS_MIN", 2)
        for start, end in itertools.pairwise([0, *cuts, len(data)]):
            found += _read(runs, coder, data[start:end])[0]
    runs.end()
    assert found == [(each.value, each.timestamp_micros, _stamp(coder, each)) for each in elements]


@pytest.mark.parametrize("times_differ", [False, True])
def test_elements_that_share_windows_are_cut_together(times_differ: bool) -> None:
    coder = coders.WindowedValueCoder(coders.BytesCoder(), GlobalWindowCoder())
    stamp = _stamp(coder, WindowedValue(b"", 0, (GlobalWindow(),)))
    # The bytes between two values are also in a value.
    values = [b"v%d" % n for n in range(300)] + [stamp * 9] + [b"w"] * 300
    data = b"".join(
        coder.get_impl().encode_nested(WindowedValue(value, n if times_differ else 0, (GlobalWindow(),)))
        for n, value in enumerate(values)
    )
    protos, id = _protos(coder)
    runs = Runs(protos, id)
    found, together = _read(runs, coder, data)
    assert [value for value, _, _ in found] == values
    assert together >= 100
    runs.end()


def test_length_beyond_the_stream_is_an_error() -> None:
    coder = coders.WindowedValueCoder(coders.BytesCoder(), GlobalWindowCoder())
    protos, id = _protos(coder)
    whole: bytes = coder.get_impl().encode_nested(WindowedValue(b"x", 0, (GlobalWindow(),)))
    for length in (b"\x7f", b"\xff\x7f", b"\xff\xff\xff\xff\x7f", b"\xff" * 9 + b"\x01", b"\xff" * 20):
        runs = Runs(protos, id)
        found, _ = _read(runs, coder, whole * 50 + whole[:-2] + length + whole * 3)
        assert [value for value, _, _ in found][:50] == [b"x"] * 50
        with pytest.raises(CutShortError):
            runs.end()


@given(st.integers(0, 2**32), st.sampled_from(range(len(_CODERS))))
def test_columns_are_skipped_as_single_values(seed: int, which: int) -> None:
    r = random.Random(seed)
    coder, value = _CODERS[which]
    protos, id = _protos(coder)
    skip, many = skipper(protos, id), skipper_of_many(protos, id)
    data = b"".join(coder.get_impl().encode_nested(value(r)) for _ in range(9)) + r.randbytes(40)
    places = np.array(sorted(r.choices(range(len(data)), k=20)), np.int64)
    for place, end in zip(places.tolist(), many(data, places).tolist(), strict=True):
        try:
            assert end == skip(data, place)
        except CutShortError:
            assert end > len(data)


@given(st.lists(st.one_of(st.integers(-(2**63), 2**63 - 1), st.sampled_from([MIN_TIMESTAMP.micros])), min_size=1))
def test_times_are_those_of_the_coder(times: list[int]) -> None:
    coder = coders.WindowedValueCoder(coders.BytesCoder(), GlobalWindowCoder())
    encoded = [(time // 1000 + 2**63).to_bytes(8, "big") for time in times]
    rest = coder.get_impl().encode_nested(WindowedValue(b"", 0, (GlobalWindow(),)))[8:]
    assert micros_of(b"".join(encoded)) == [coder.decode(each + rest).timestamp_micros for each in encoded]
