"""The end of a bundle's input."""

from __future__ import annotations

import pytest
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb

from arcbeam.fnapi.wire import outgoing


@pytest.mark.parametrize(
    ("sdk", "lasts"),
    [("go:apache/beam_go_sdk:2.77.0", [True, False, True]), ("apache/beam_python3.11_sdk:2.77.0", [True] * 3)],
)
def test_go_worker_gets_one_end_for_each_transform_with_timers(sdk: str, lasts: list[bool]) -> None:
    once = outgoing.ends_once(runner_pb.Environment(capabilities=["any", f"beam:version:sdk_base:{sdk}"]))
    message = outgoing.end("bundle", "source", [("a", "f"), ("a", "g"), ("b", "f")], once=once)
    assert [(each.transform_id, each.timer_family_id) for each in message.timers] == [
        ("a", "f"),
        ("a", "g"),
        ("b", "f"),
    ]
    assert [each.is_last for each in message.timers] == lasts
    assert [each.is_last for each in message.data] == [True]
