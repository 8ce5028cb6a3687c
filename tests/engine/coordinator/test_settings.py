"""The default settings of a job."""

from __future__ import annotations

import pytest

from arcbeam.engine.coordinator import CoordinatorSettings, EndState, WaitUntil
from tests.engine.coordinator.script import Driver
from tests.golden.texts import check_message

MINUTE = 60_000_000


def running(driver: Driver) -> bool:
    return driver.machine.mode.value == "running"


def fails(driver: Driver, what: str) -> None:
    """The command fails at once, and the driver waits until the retry."""
    driver.say(what)
    if running(driver):
        waits = driver.last[-1]
        assert isinstance(waits, WaitUntil)
        driver.say(f"clock {waits.moment}")


@pytest.mark.contract("STORE-01")
@pytest.mark.parametrize(
    ("before", "what", "after"),
    [
        (("start",), "fails", "reports more"),
        (("start", "reports more"), "refused", "committed"),
        (("start", "reports more"), "unknown", "committed"),
        (("start unpublished",), "publish fails", "published"),
    ],
)
def test_store_may_be_unavailable_for_a_minute(before: tuple[str, ...], what: str, after: str) -> None:
    driver = Driver(CoordinatorSettings())
    for line in before:
        driver.say(line)
    while driver.now < MINUTE:
        fails(driver, what)
        assert running(driver)
    driver.say(after)
    assert running(driver)


def test_longer_outage_of_store_fails_job() -> None:
    driver = Driver(CoordinatorSettings())
    driver.say("start")
    driver.say("reports more")
    while running(driver):
        fails(driver, "refused")
    assert MINUTE < driver.now < 2 * MINUTE
    driver.say("torn down")
    assert driver.end is not None
    assert driver.end.state is EndState.FAILED
    check_message("machine-store-refuses", driver.end.why)
