"""Metrics of a job as Beam's users read them.

Owns turning serialized monitoring infos into Beam's `MetricResults`. Must not know where they come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from apache_beam.metrics import metric
from apache_beam.metrics.execution import MetricResult
from apache_beam.portability.api import metrics_pb2
from apache_beam.runners.portability import portable_metrics


class JobMetrics(metric.MetricResults):  # type: ignore[misc]  # Beam is untyped
    """Attempted and committed values; a bounded job commits what its successful tasks report, so both are the same.

    Args:
        infos: serialized MonitoringInfos, consolidated.
        user_only: leave out the SDK's own.
    """

    def __init__(self, infos: Sequence[bytes], user_only: bool = True) -> None:
        protos = [metrics_pb2.MonitoringInfo.FromString(info) for info in infos]
        self._infos = protos
        parsed = portable_metrics.from_monitoring_infos(protos, user_only)
        self._counters, self._distributions, self._gauges, self._string_sets, self._bounded_tries = parsed[:5]

    def monitoring_infos(self) -> list[Any]:
        """All infos, as protos."""
        return list(self._infos)

    def query(self, filter: Any = None) -> dict[str, list[Any]]:
        """See Beam's `MetricResults.query`."""

        def results(found: dict[Any, Any]) -> list[Any]:
            return [MetricResult(k, v, v) for k, v in found.items() if self.matches(filter, k)]

        return {
            self.COUNTERS: results(self._counters),
            self.DISTRIBUTIONS: results(self._distributions),
            self.GAUGES: results(self._gauges),
            self.STRINGSETS: results(self._string_sets),
            self.BOUNDED_TRIES: results(self._bounded_tries),
        }
