"""Encoded windowed values keep microseconds."""

from __future__ import annotations

import pytest
from apache_beam.coders.coders import GlobalWindowCoder, VarIntCoder, WindowedValueCoder
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.windowed_value import PANE_INFO_UNKNOWN, PaneInfo, PaneInfoTiming, create

from arcbeam.harness.encoding.exactcoder import ExactCoder
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP

SDKS = WindowedValueCoder(VarIntCoder(), GlobalWindowCoder())


@pytest.mark.parametrize("micros", [MIN_TIMESTAMP, MIN_TIMESTAMP + 1, -1_001, -1, 0, 1_999, MAX_TIMESTAMP - 1])
@pytest.mark.parametrize("pane", [PANE_INFO_UNKNOWN, PaneInfo(True, False, PaneInfoTiming.EARLY, 0, -1)])
def test_windowed_value_is_decoded_equal(micros: int, pane: PaneInfo) -> None:
    coder = ExactCoder(SDKS)
    assert coder.is_deterministic() == SDKS.is_deterministic()
    impl = coder.get_impl()
    value = create(7, micros, (GlobalWindow(),), pane)
    found = impl.decode_nested(impl.encode_nested(value))
    assert (found, found.timestamp_micros, found.pane_info) == (value, micros, pane)
