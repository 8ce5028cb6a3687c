"""Calls of publishers: every committable is in exactly one call."""

from __future__ import annotations

import pytest

from arcbeam.spark.tasks.ending import publishing


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 6, 7])
def test_each_committable_is_in_one_call_in_order(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(publishing, "_TOGETHER", 3)
    given = {"a": [b"%d" % n for n in range(count)], "b": [b"0", b"1"]}
    calls = publishing.calls_of(given, again=True)
    for name, committables in given.items():
        of = [call for call in calls if call.publisher == name]
        assert [each for call in of for each in call.committables] == committables
        assert all(0 < len(call.committables) <= 3 for call in of)
    assert all(call.again and call.sweep is None for call in calls)
