from __future__ import annotations

from apache_beam.metrics.execution import MetricsContainer
from apache_beam.metrics.metricbase import MetricName

from arcbeam.harness.bundle.metrics import forget_gauges


def test_gauge_is_reported_once_for_each_value() -> None:
    container = MetricsContainer("step")
    container.get_counter(MetricName("ns", "counter")).inc()
    for name in ("one", "two"):
        container.get_gauge(MetricName("ns", name)).set(1)
    container.reset()
    forget_gauges(container)
    container.get_gauge(MetricName("ns", "two")).set(2)
    infos = container.to_runner_api_monitoring_infos("step").values()
    assert sorted(info.labels["NAME"] for info in infos) == ["counter", "two"]
