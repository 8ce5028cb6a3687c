from __future__ import annotations

import time
from typing import Any

import pytest
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.utils.timestamp import MIN_TIMESTAMP, Timestamp

from arcbeam.io.kafka.discovery import BrokersAwayError, Discover, DiscoverOnce, Wanted
from arcbeam.io.kafka.fetching.protocols import TopicGoneError
from arcbeam.io.kafka.partitions import ENDLESS, Known, Partition
from arcbeam.io.kafka.times import CREATED, EventTimes
from arcbeam.model.attempts import wait_reason
from arcbeam.model.timestamps import NOT_BEGUN
from tests.io.kafka.fakes import Topics, discover

NOW = 1_000.0
pytestmark = pytest.mark.contract("KAFKA-03")


def wanted(**how: Any) -> Wanted:
    given: dict[str, Any] = {"topics": ("t",), "pattern": "", "partitions": (), "start": "earliest", "stop": None}
    return Wanted(**{**given, **how}, committed=True)


def search(topics: Topics, of: Wanted | None = None, seconds: float | None = 30.0, idle: bool = True) -> Discover:
    return Discover(topics, of or wanted(), seconds, EventTimes(CREATED, 5_000_000, idle), lambda: NOW)  # type: ignore[arg-type]


def test_first_search_finds_all_partitions() -> None:
    found = discover(search(Topics({"t": ("a", 2)})))
    assert [output.value for output in found.outputs] == [Partition("t", "a", 0), Partition("t", "a", 1)]
    assert {output.timestamp for output in found.outputs} == {MIN_TIMESTAMP}
    assert (found.rest, found.watermark, found.delay) == (
        Known((("t", "a", 0), ("t", "a", 1)), searched=True),
        NOW - 5,
        pytest.approx(30, abs=1),
    )


@pytest.mark.parametrize("begins", [0, 7])
def test_later_partition_is_read_from_its_beginning(begins: int) -> None:
    estimator = ManualWatermarkEstimator(Timestamp(900))
    fn = search(Topics({"t": ("a", 2)}, begins), wanted(start="latest"))
    found = discover(fn, Known((("t", "a", 0),), searched=True), estimator)
    (output,) = found.outputs
    assert (output.value, output.timestamp) == (Partition("t", "a", 1, begins), Timestamp(900))
    assert discover(fn, found.rest, estimator).outputs == []


def test_earliest_is_the_first_offset_that_exists() -> None:
    found = discover(search(Topics({"t": ("a", 1)}, begins=7)))
    assert found.outputs[0].value == Partition("t", "a", 0, 7, ENDLESS)


def test_first_partitions_begin_at_start() -> None:
    found = discover(search(Topics({"t": ("a", 1)}), wanted(start="latest")))
    assert found.outputs[0].value == Partition("t", "a", 0, 100, ENDLESS)


def test_offsets_of_start_and_stop_are_kept() -> None:
    of = wanted(start={("t", 0): 3}, stop={("t", 0): 9})
    found = discover(search(Topics({"t": ("a", 1)}), of, None))
    assert (found.outputs[0].value, found.rest) == (Partition("t", "a", 0, 3, 9), None)


@pytest.mark.parametrize(
    ("start", "begins", "ends", "reported"),
    [
        (
            {("t", 0): 0},
            7,
            9,
            r"start=…\), t\[0\]: the offset 0 is before the first record .* 7 to 9\. Give one of these",
        ),
        ({("t", 0): 12}, 7, 9, r"t\[0\]: the offset 12 is after the last record that exists: its offsets are 7 to 9"),
        (
            "group",
            101,
            101,
            r"start='group'\), t\[0\]: the offset 100 is before .*\. Reset it, or use start='earliest'",
        ),
    ],
)
def test_start_that_does_not_exist_is_named(start: Any, begins: int, ends: int, reported: str) -> None:
    topics = Topics({"t": ("a", 1)}, begins, ends)
    if start == "group":
        topics.group = 100
    with pytest.raises(LookupError, match=reported):
        discover(search(topics, wanted(start=start)))


@pytest.mark.parametrize("start", [7, 9])
def test_start_at_either_end_of_a_log_is_accepted(start: int) -> None:
    (found,) = discover(search(Topics({"t": ("a", 1)}, 7, 9), wanted(start={("t", 0): start}))).outputs
    assert found.value == Partition("t", "a", 0, start, ENDLESS)


def test_missing_offset_of_start_is_named() -> None:
    with pytest.raises(LookupError, match=r"start=.*no offset for partition 1 of the topic t"):
        discover(search(Topics({"t": ("a", 2)}), wanted(start={("t", 0): 3})))


@pytest.mark.parametrize("argument", ["start", "stop"])
def test_offset_of_a_partition_that_is_not_read_is_named(argument: str) -> None:
    offsets = {("t", 0): 3, ("t", 9): 1}
    with pytest.raises(LookupError, match=rf"{argument}=….*offset for t\[9\], which is not read"):
        discover(search(Topics({"t": ("a", 1)}, 0, 9), wanted(**{argument: offsets})))


def test_recreated_topic_is_refused() -> None:
    with pytest.raises(TopicGoneError, match="topic t was deleted and created again"):
        discover(search(Topics({"t": ("b", 1)})), Known((("t", "a", 0),), searched=True))


def test_deleted_topic_is_refused() -> None:
    with pytest.raises(TopicGoneError, match="topic t is read by this job, but was deleted"):
        discover(search(Topics({}), wanted(topics=(), pattern="t")), Known((("t", "a", 0),), searched=True))


def test_unknown_topic_is_named() -> None:
    with pytest.raises(LookupError, match="topic t does not exist"):
        discover(search(Topics({})))


def test_unknown_partition_is_named() -> None:
    with pytest.raises(LookupError, match="topic t has no partition 7"):
        discover(search(Topics({"t": ("a", 2)}), wanted(topics=(), partitions=(("t", 7),))))


def test_pattern_finds_whole_names() -> None:
    topics = Topics({"t1": ("a", 1), "t2": ("b", 1), "xt1": ("c", 1)})
    found = discover(search(topics, wanted(topics=(), pattern="t.")))
    assert [repr(output.value) for output in found.outputs] == ["t1[0]", "t2[0]"]


def test_pattern_that_matches_nothing_is_in_the_status() -> None:
    topics = Topics({"t1": ("a", 1)})
    fn = search(topics, wanted(topics=(), pattern="t"))
    wait_reason.take()
    found = discover(fn)
    assert (found.outputs, wait_reason.take()) == (
        [],
        "no topic that this user may describe has a name that is all of 't'",
    )
    topics.described["t"] = ("b", 1)
    found = discover(fn, found.rest)
    assert (repr(found.outputs[0].value), wait_reason.take()) == ("t[0]", "")


def test_pattern_that_will_match_nothing_fails() -> None:
    with pytest.raises(LookupError, match=r"no topic .* has a name that is all of 't\.'"):
        discover(search(Topics({"t": ("a", 1)}), wanted(topics=(), pattern="t."), None))


def test_search_waits_for_the_broker() -> None:
    known = Known((("t", "a", 0),), searched=True)
    found = discover(search(Topics({}, down=True)), known, ManualWatermarkEstimator(Timestamp(900)))
    assert (found.outputs, found.rest, found.watermark) == ([], known, 900)


def test_first_search_waits_for_the_broker_and_then_begins_at_start() -> None:
    topics = Topics({"t": ("a", 1)}, down=True)
    fn = search(topics, wanted(start="latest"))
    estimator = ManualWatermarkEstimator(None)
    found = discover(fn, estimator=estimator)
    # It has reported one, but as if it had not begun.
    assert (found.outputs, found.rest, estimator.current_watermark().micros) == ([], Known(), NOT_BEGUN)
    assert wait_reason.take().startswith(
        "no broker of kafka:9092 has answered for 0 s: down. Check bootstrap.servers, "
    )
    topics.down = False
    found = discover(fn, found.rest, estimator)
    (output,) = found.outputs
    assert (output.value, output.timestamp) == (Partition("t", "a", 0, 100, ENDLESS), MIN_TIMESTAMP)
    assert (found.watermark, wait_reason.take()) == (NOW - 5, "")


def test_topic_that_appears_after_the_first_search_is_read_from_its_beginning() -> None:
    topics = Topics({})
    fn = search(topics, wanted(topics=(), pattern="t", start="latest"))
    found = discover(fn)
    assert (found.outputs, found.rest) == ([], Known(searched=True))
    topics.described["t"] = "a", 1
    assert discover(fn, found.rest).outputs[0].value == Partition("t", "a", 0, 0)


def test_bounded_read_fails_without_a_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [NOW]
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    fn = DiscoverOnce(Topics({}, down=True), wanted(), None, EventTimes(CREATED, 0, True), lambda: now[0])  # type: ignore[arg-type]
    with pytest.raises(
        BrokersAwayError, match=r"no broker of kafka:9092 has answered for 6\d s: down\. Check bootstrap\.servers"
    ):
        discover(fn)


@pytest.mark.parametrize(("wrong", "known"), [(True, False), (True, True), (False, False)])
def test_new_stream_fails_soon_if_no_broker_can_be_found(wrong: bool, known: bool) -> None:
    now = [NOW]
    topics = Topics({}, down=True, wrong=wrong)
    fn = Discover(topics, wanted(), 1.0, EventTimes(CREATED, 0, True), lambda: now[0])  # type: ignore[arg-type]

    def search_for(seconds: int) -> None:
        for _ in range(seconds):
            discover(fn, Known((("t", "a", 0),) if known else (), searched=known))
            now[0] += 1

    search_for(10)
    if not wrong or known:
        search_for(100)
        return
    with pytest.raises(
        BrokersAwayError, match=r"no broker of kafka:9092 has answered for 11 s: down\. Check bootstrap"
    ):
        search_for(5)


def test_stream_forgets_trouble_that_is_over() -> None:
    now = [NOW]
    topics = Topics({"t": ("a", 1)}, down=True, wrong=True)
    fn = Discover(topics, wanted(), 1.0, EventTimes(CREATED, 0, True), lambda: now[0])  # type: ignore[arg-type]
    discover(fn)
    now[0], topics.down = NOW + 9, False
    discover(fn)
    now[0], topics.down = NOW + 29, True
    assert discover(fn).rest == Known()


def test_old_records_do_not_follow_the_clock() -> None:
    estimator = ManualWatermarkEstimator(Timestamp(900))
    found = discover(search(Topics({"t": ("a", 1)}), idle=False), Known(), estimator)
    assert found.outputs[0].timestamp == MIN_TIMESTAMP
