"""How often a wrong token may be tried, by address."""

from __future__ import annotations

import pytest

from arcbeam.page.access.throttle import SECONDS, TRIES, Throttle

pytestmark = pytest.mark.contract("PAGE-02")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def failed(throttle: Throttle, address: str, times: int) -> None:
    for _ in range(times):
        assert throttle.wait(address) == 0
        throttle.failed(address)


def test_wrong_tokens_are_answered_slower_after_some() -> None:
    clock = Clock()
    throttle = Throttle(clock)
    failed(throttle, "10.0.0.1", TRIES)
    assert throttle.wait("10.0.0.1") == SECONDS
    assert throttle.wait("10.0.0.2") == 0, "others are not refused"
    clock.now += SECONDS
    failed(throttle, "10.0.0.1", 1)
    assert throttle.wait("10.0.0.1") == SECONDS
    clock.now += TRIES * SECONDS
    failed(throttle, "10.0.0.1", TRIES)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::2:3", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("", "testclient", False),
    ],
)
def test_network_of_ipv6_counts_as_one_address(one: str, other: str, same: bool) -> None:
    throttle = Throttle(Clock())
    failed(throttle, one, TRIES)
    assert (throttle.wait(other) > 0) is same
