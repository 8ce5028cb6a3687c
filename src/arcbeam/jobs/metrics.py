"""Metrics of a job, as Beam's users read them.

Owns the translation of serialized monitoring infos into Beam's `MetricResults`. Must not know their source.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from apache_beam.metrics import metric, monitoring_infos
from apache_beam.metrics.execution import MetricResult
from apache_beam.portability.api import metrics_pb2
from apache_beam.runners.portability import portable_metrics


class JobMetrics(metric.MetricResults):  # type: ignore[misc]  # Beam is untyped
    """Attempted and committed values. A batch job commits what its successful tasks report, so both are the same.

    Args:
        committed: serialized MonitoringInfos of committed work, consolidated.
        user_only: omit the SDK's own metrics.
        attempted: those of all attempts; None: the committed ones are all.
    """

    def __init__(
        self, committed: Sequence[bytes], user_only: bool = True, attempted: Sequence[bytes] | None = None
    ) -> None:
        self._infos = [metrics_pb2.MonitoringInfo.FromString(info) for info in committed]
        self._committed = portable_metrics.from_monitoring_infos(self._infos, user_only)
        self._attempted = self._committed
        if attempted is not None:
            tried = [metrics_pb2.MonitoringInfo.FromString(info) for info in attempted]
            self._attempted = portable_metrics.from_monitoring_infos(tried, user_only)

    def monitoring_infos(self) -> list[Any]:
        """Return all committed infos, as protos."""
        return list(self._infos)

    def query(self, filter: Any = None) -> dict[str, list[Any]]:
        """See Beam's `MetricResults.query`."""
        kinds = (self.COUNTERS, self.DISTRIBUTIONS, self.GAUGES, self.STRINGSETS, self.BOUNDED_TRIES)
        return {
            kind: [
                MetricResult(key, committed.get(key), tried.get(key))
                for key in dict.fromkeys([*committed, *tried])
                if self.matches(filter, key)
            ]
            for kind, committed, tried in zip(kinds, self._committed, self._attempted, strict=False)
        }


def no_elements(pipeline: Any) -> list[Any]:
    """Return the metrics of a job that has reported nothing: each of its PCollections has no elements.

    No user metric is among them: a pipeline does not declare those.

    Args:
        pipeline: its proto.
    """
    return [
        monitoring_infos.int64_counter(
            monitoring_infos.ELEMENT_COUNT_URN, 0, labels={monitoring_infos.PCOLLECTION_LABEL: id}
        )
        for id in sorted(pipeline.components.pcollections)
    ]


_SET_SIZE_MAX = 100
"""Strings of a set that are shown."""


def metrics_record(metrics: metric.MetricResults) -> list[dict[str, Any]]:
    """Return user metrics as JSON's values: `kind`, `step`, `namespace`, `name`, and `value`, the committed one.

    A value is a number; for a distribution `sum`, `count`, `min` and `max`; for a set its first strings, and how many
    there are.
    """
    return [
        {
            "kind": kind,
            "step": result.key.step,
            "namespace": result.key.metric.namespace,
            "name": result.key.metric.name,
            "value": _plain(result.committed),
        }
        for kind, results in metrics.query().items()
        for result in results
    ]


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, int | float | str):
        return value
    if hasattr(value, "count") and hasattr(value, "sum"):
        return {name: getattr(value, name) for name in ("sum", "count", "min", "max")}
    if hasattr(value, "timestamp"):
        return value.value
    found = getattr(value, "string_set", value)
    if isinstance(found, set | frozenset):
        return {"strings": sorted(map(str, found))[:_SET_SIZE_MAX], "number": len(found)}
    return str(value)
