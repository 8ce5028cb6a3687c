"""A job's metrics, as Beam's users and the page read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from apache_beam.metrics import MetricsFilter, monitoring_infos
from apache_beam.metrics.cells import DistributionData, GaugeData

from arcbeam.jobs.metrics import JobMetrics, metrics_record


def serialized(*infos: Any) -> list[bytes]:
    return [info.SerializeToString() for info in infos]


def counter(name: str, value: int) -> Any:
    return monitoring_infos.int64_user_counter("ns", name, value, ptransform="Count")


COMMITTED = serialized(counter("words", 5), monitoring_infos.int64_counter("beam:metric:element_count:v1", 9))


@pytest.mark.parametrize(
    ("attempted", "counters"),
    [
        (None, {"words": (5, 5)}),
        (serialized(counter("words", 8)), {"words": (5, 8)}),
        (serialized(counter("words", 8), counter("lines", 1)), {"words": (5, 8), "lines": (None, 1)}),
        ([], {"words": (5, None)}),
    ],
)
def test_committed_and_attempted_values_are_apart(
    attempted: Sequence[bytes] | None, counters: dict[str, tuple[int | None, int | None]]
) -> None:
    found = JobMetrics(COMMITTED, True, attempted).query()[JobMetrics.COUNTERS]
    assert {each.key.metric.name: (each.committed, each.attempted) for each in found} == counters
    assert all(each.key.step == "Count" for each in found)


def test_metrics_of_the_sdk_are_shown_on_request() -> None:
    found = JobMetrics(COMMITTED, False)
    assert len(found.query()[JobMetrics.COUNTERS]) == len(found.monitoring_infos()) == 2
    (words,) = found.query(MetricsFilter().with_name("words"))[JobMetrics.COUNTERS]
    assert words.committed == 5


def test_record_has_the_parts_of_each_kind() -> None:
    infos = serialized(
        counter("words", 5),
        monitoring_infos.int64_user_distribution("ns", "sizes", DistributionData(9, 2, 4, 5), ptransform="Count"),
        monitoring_infos.int64_user_gauge("ns", "last", GaugeData(7, 1.0), ptransform="Count"),
        monitoring_infos.user_set_string("ns", "names", {"b", "a"}, ptransform="Count"),
    )
    assert {each["name"]: (each["kind"], each["value"]) for each in metrics_record(JobMetrics(infos))} == {
        "words": ("counters", 5),
        "sizes": ("distributions", {"sum": 9, "count": 2, "min": 4, "max": 5}),
        "last": ("gauges", 7),
        "names": ("string_sets", {"strings": ["a", "b"], "number": 2}),
    }
