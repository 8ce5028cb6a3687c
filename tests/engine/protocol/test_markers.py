"""Markers count only if all exist and name the same attempts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from arcbeam.engine.protocol.markers import NO_INPUT, InconsistentCutError, Marker, UpstreamWatermarks, digest, gather
from arcbeam.engine.watermarks.clocks import Port
from arcbeam.model.timestamps import Timestamp

_READ, _JOIN = Port("read", "main"), Port("join", "main")
_MARKERS = [
    Marker(7, 1, 1, task, b"token%d" % task, b"seen", {_READ: Timestamp(9), _JOIN: Timestamp(3 + task)})
    for task in range(3)
]


def _gather(markers: Sequence[Marker], committed: int = 0) -> UpstreamWatermarks:
    return gather(
        markers,
        micro_batch=7,
        attempt=1,
        level=1,
        tasks=3,
        ports=(_READ, _JOIN),
        committed_outputs={_JOIN: Timestamp(committed)},
    )


@pytest.mark.contract("ENG-01", "STORE-02")
def test_gathered_markers_have_minimum_times_and_digest() -> None:
    gathered = _gather(_MARKERS[::-1] + _MARKERS[:1])
    assert gathered.times == {_READ: 9, _JOIN: 3}
    assert gathered.input_digest == digest(b"seen", [b"token0", b"token1", b"token2"])
    assert _gather(_MARKERS, committed=4).times[_JOIN] == 4


@pytest.mark.contract("STORE-02")
@pytest.mark.parametrize(
    ("markers", "why"),
    [
        (_MARKERS[:2], r"no marker .* 2 of level 1"),
        ([], r"no marker .* 0, 1, 2 of level 1"),
        ([*_MARKERS, replace(_MARKERS[0], token=b"again")], "two attempts of task 0 of level 1"),
        (
            [*_MARKERS[:2], replace(_MARKERS[2], input_digest=b"other")],
            "tasks 0 and 2 of level 1 .* different attempts",
        ),
        (
            [*_MARKERS[:2], replace(_MARKERS[2], attempt=0)],
            "marker of task 2 of level 1, micro-batch 7, run 0: .* micro-batch 7, run 1",
        ),
        ([*_MARKERS, replace(_MARKERS[2], task=3)], "marker of task 3 of level 1"),
        ([*_MARKERS[:2], replace(_MARKERS[2], times={_JOIN: Timestamp(3)})], "lacks output 'main' of 'read'"),
    ],
)
def test_missing_or_contradictory_markers_are_errors(markers: list[Marker], why: str) -> None:
    with pytest.raises(InconsistentCutError, match=why):
        _gather(markers)


def test_digests_of_ambiguous_tokens_differ() -> None:
    digests = [
        digest(NO_INPUT, []),
        digest(NO_INPUT, [b""]),
        digest(NO_INPUT, [b"ab"]),
        digest(NO_INPUT, [b"a", b"b"]),
        digest(b"a", [b"b"]),
    ]
    assert len(set(digests)) == len(digests)
