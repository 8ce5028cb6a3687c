"""Event times from fields and functions; errors for invalid times; no other effect on a bounded input."""

from __future__ import annotations

import math
import re
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.typehints.row_type import RowTypeConstraint
from apache_beam.utils.timestamp import MIN_TIMESTAMP, Timestamp

from arcbeam.errors import SetupError
from arcbeam.io import WithWatermark, WithWatermarkPolicy
from arcbeam.io.watermarks import EventTime, _EventTimes
from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW


class Click(NamedTuple):
    """A row type."""

    at: float
    name: str
    seen: datetime
    maybe: Timestamp | None
    flag: bool
    whatever: Any


@dataclass
class Visit:
    """An object with attributes."""

    at: Timestamp
    name: str


def _times(by: EventTime, *elements: Any) -> list[int] | None:
    return _EventTimes(by).times_of(list(elements))


_NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)
_CLICK = Click(3, "a", _NOON, None, False, 0)
_ROW = RowTypeConstraint.from_fields([("at", float), ("name", str)])


@pytest.mark.contract("WM-07")
@pytest.mark.parametrize(
    ("time", "micros"),
    [
        (5, 5_000_000),
        (-5, -5_000_000),
        (1.5, 1_500_000),
        (-0.000001, -1),
        (1_700_000_000.123456, 1_700_000_000_123_456),
        (np.int32(1_700_000_000), 1_700_000_000_000_000),
        (np.int64(-5), -5_000_000),
        (np.float32(0.5), 500_000),
        (Timestamp(micros=7), 7),
        (Timestamp(micros=-7), -7),
        (_NOON, 1_357_041_600_000_000),
        (_NOON.replace(microsecond=1), 1_357_041_600_000_001),
        (datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC), -1),
        (datetime(2013, 1, 1, 14, tzinfo=timezone(timedelta(hours=2))), 1_357_041_600_000_000),
        (datetime(1, 1, 1, tzinfo=UTC), -62_135_596_800_000_000),
    ],
)
def test_time_is_timestamp_datetime_or_seconds(time: Any, micros: int) -> None:
    assert _times(lambda x: x, time, time) == [micros] * 2
    assert _times("at", {"at": time}) == [micros]
    assert _times("at", Visit(time, "")) == [micros]
    assert _times(lambda x: x, time, 1.0) == [micros, 1_000_000], "types may be mixed"
    assert _times(lambda x: x, *[time] * 50) == [micros] * 50, "many times are converted together"


@pytest.mark.contract("WM-07")
@pytest.mark.parametrize(
    ("time", "expected"),
    [
        ("noon", "'noon', a str; it must be a Timestamp, a datetime with a time zone, or seconds"),
        (None, "None, a NoneType"),
        (True, "True, a bool"),
        (math.nan, "nan, a float"),
        (math.inf, "inf, a float"),
        (1e13, "10000000000000.0, a float"),
        (10**13, "a int"),
        (MIN_TIMESTAMP - 1, "within Beam's event time"),
        (datetime(2013, 1, 1), "a datetime without a time zone"),
    ],
)
def test_error_names_invalid_time(time: Any, expected: str) -> None:
    for others in ((), (2,), (datetime(2013, 1, 1, tzinfo=UTC),), (2.0,) * 50):
        with pytest.raises(ValueError, match=f"field 'at' of an element is .*{expected}.*'who'"):
            _times("at", *({"at": other} for other in others), {"at": time, "name": "who"})
        with pytest.raises(ValueError, match=f"the event time of an element is .*{expected}"):
            _times(lambda x: x, *others, time)


@pytest.mark.contract("WM-07")
def test_error_names_element_without_field() -> None:
    for element in ({"name": "who"}, Visit.__new__(Visit), 5):
        with pytest.raises(ValueError, match=r"an element of type \w+ has no field 'at', .* event time"):
            _times("at", {"at": 1}, element)
    assert _times("at", {"at": 1}, Visit(Timestamp(2), ""), Click(3, "", _NOON, None, False, 0)) == [
        10**6,
        2 * 10**6,
        3 * 10**6,
    ]


@pytest.mark.contract("WM-07")
@pytest.mark.parametrize("kind", [Click, _ROW, Visit])
def test_schema_is_checked_at_submission(kind: Any) -> None:
    p = beam.Pipeline(runner="DirectRunner")
    rows = p | beam.Create([_CLICK]).with_output_types(kind)
    for field, expected in (
        ("ad", "unknown field 'ad'; .* 'at', 'name'"),
        ("name", "field 'name' has type <class 'str'>, which is not a time"),
    ):
        with pytest.raises(ValueError, match=rf"WithWatermark\({field}\): {expected}"):
            _ = rows | WithWatermark(field, 1)
    if kind is Click:
        with pytest.raises(ValueError, match="field 'flag' has type <class 'bool'>"):
            _ = rows | WithWatermark("flag", 1)
        for field in ("at", "seen", "maybe", "whatever"):
            _ = rows | WithWatermark(field, 1)


@pytest.mark.contract("WM-07")
def test_warns_once_of_milliseconds(caplog: pytest.LogCaptureFixture) -> None:
    at = 1_357_041_600_000
    fn = _EventTimes("at")
    for time in (at, float(at), np.int64(at)):
        assert fn.times_of([{"at": time}] * 3) == [at * 1_000_000] * 3, "one bad element does not end a stream"
    (record,) = caplog.records
    assert re.search("field 'at' of an element is 1357041600000 seconds, .* 9999.*milliseconds", record.message)
    caplog.clear()
    _times("at", {"at": 253_402_300_799}, {"at": -at // 10}, {"at": Timestamp(micros=END_OF_GLOBAL_WINDOW)})
    assert not caplog.records


class Unresolved(NamedTuple):
    at: "NotThere"  # type: ignore[name-defined]  # noqa: F821, UP037
    name: str


@pytest.mark.contract("WM-07")
def test_unresolved_types_are_accepted_but_names_are_checked() -> None:
    rows = beam.Pipeline(runner="DirectRunner") | beam.Create([Unresolved(1, "")]).with_output_types(Unresolved)
    _ = rows | WithWatermark("at", 1)
    with pytest.raises(ValueError, match=r"unknown field 'ad'; .* 'at', 'name'"):
        _ = rows | WithWatermark("ad", 1)


@pytest.mark.contract("WM-07")
def test_value_type_of_dict_is_checked() -> None:
    p = beam.Pipeline(runner="DirectRunner")
    texts = p | "Texts" >> beam.Create([{"at": "1"}]).with_output_types(dict[str, str])
    with pytest.raises(ValueError, match="type <class 'str'>, which is not a time; key 'at' must be a Timestamp"):
        _ = texts | WithWatermark("at", 1)
    for kind in (dict[str, float], dict[str, Any], dict[str, str | int], dict):
        _ = p | f"{kind}" >> beam.Create([{"at": 1}]).with_output_types(kind) | f"W{kind}" >> WithWatermark("at", 1)


def test_invalid_watermark_arguments_are_refused() -> None:
    for arguments, expected in (
        ({"delay": -1}, r"delay=-1\): a duration must not be negative"),
        (
            {"delay": "10 minutes"},
            r"delay='10 minutes'\): expected a duration",
        ),
        ({"delay": None}, r"delay=None\): expected a duration"),
        ({"delay": math.nan}, r"delay=nan\): expected a duration"),
        ({"delay": 1, "max_skew": -0.5}, r"max_skew=-0.5\)"),
        ({"delay": 1, "quantile": 1.5}, r"quantile=1.5\)"),
        ({"delay": 1, "max_jump": -1}, r"max_jump=-1\)"),
        ({"delay": 1, "max_jump": 1, "quantile": 0.5}, r"max_jump=1, quantile=0.5\)"),
        ({"delay": 1, "confirmed_by": 0}, r"confirmed_by=0\): .* 1 to 999"),
        ({"delay": 1, "confirmed_by": True}, r"confirmed_by=True\)"),
        ({"delay": 1, "policy": "mean"}, "policy='mean'.: .*'min' or 'max'"),
    ):
        with pytest.raises(ValueError, match=expected):
            WithWatermark("at", **arguments)
    assert WithWatermark("at", timedelta(minutes=5))._observing.delay == 300_000_000
    windowed = beam.Pipeline() | beam.Create([1]) | beam.WindowInto(beam.window.FixedWindows(1))
    with pytest.raises(ValueError, match=r"already in windows of FixedWindows\(size=\d+\)"):
        _ = windowed | WithWatermark("at", 1)
    _ = windowed | WithWatermark(None, 1)
    with pytest.raises(ValueError, match="event_time=5"):
        WithWatermark(5, 1)  # type: ignore[arg-type]


@pytest.mark.contract("WM-01")
def test_other_runners_set_event_times() -> None:
    with beam.Pipeline(runner="DirectRunner") as p:
        rows = p | beam.Create([{"at": 3.5}, {"at": -2}])
        times = rows | WithWatermark("at", 1) | beam.Map(lambda x, t=beam.DoFn.TimestampParam: (x["at"], t.micros))
        assert_that(times, equal_to([(3.5, 3_500_000), (-2, -2_000_000)]))
        kept = rows | "Own" >> WithWatermark(None, 1) | "Of" >> beam.Map(lambda x, t=beam.DoFn.TimestampParam: t)
        assert_that(kept, equal_to([MIN_TIMESTAMP] * 2), label="kept")


@pytest.mark.contract("WM-02")
def test_policy_returns_same_structure_of_collections() -> None:
    with beam.Pipeline(runner="DirectRunner") as p:
        ones, twos = p | "1" >> beam.Create([("a", 1)]), p | "2" >> beam.Create([("a", 2)])
        for policy, idle_after in (("min", None), ("min", 5), ("max", None)):
            label = f"{policy}{idle_after}"
            flat = (ones, twos) | label >> WithWatermarkPolicy(policy, idle_after=idle_after)  # type: ignore[arg-type]
            assert_that(flat | f"F{label}" >> beam.Flatten(), equal_to([("a", 1), ("a", 2)]), f"A{label}")
        both = {"l": ones, "r": twos} | WithWatermarkPolicy("max")
        assert_that(both | beam.CoGroupByKey(), equal_to([("a", {"l": [1], "r": [2]})]), "Joined")


def test_invalid_policy_is_refused() -> None:
    for arguments, expected in (
        ({"policy": "mean"}, r"WithWatermarkPolicy\('mean'\): .*'min' or 'max'"),
        ({"policy": "min", "idle_after": -1}, r"WithWatermarkPolicy\(idle_after=-1\): a duration must not"),
        ({"policy": "max", "idle_after": 1}, r"WithWatermarkPolicy\('max', idle_after=…\)"),
    ):
        with pytest.raises(ValueError, match=expected):
            WithWatermarkPolicy(**arguments)  # type: ignore[arg-type]
    one = beam.Pipeline(runner="DirectRunner") | beam.Create([1])
    for wrong in (one, ()):
        with pytest.raises(
            ValueError, match=r"WithWatermarkPolicy.*: expected a tuple, a list or a dict of collections, not "
        ):
            WithWatermarkPolicy("max").expand(wrong)


def test_quantile_without_its_package_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasketches", None)
    WithWatermark(None, 1)
    with pytest.raises(SetupError, match=r"quantile=0\.9\): the package datasketches is not installed"):
        WithWatermark(None, 1, quantile=0.9)
