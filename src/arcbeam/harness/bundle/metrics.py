"""Merging the SDK's monitoring infos, over the bundles of a task and the tasks of a job.

Owns how two values of one metric are merged, by type: the SDK's `consolidate` knows sums and distributions only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from apache_beam import coders
from apache_beam.metrics import monitoring_infos as mi
from apache_beam.metrics.cells import GaugeCell, HistogramData
from apache_beam.metrics.execution import MetricsContainer
from apache_beam.metrics.metricbase import MetricName
from apache_beam.portability.api import metrics_pb2

DROPPED_CLOSED = MetricName("arcbeam", "droppedDueToClosedWindow")
DROPPED_LATE = MetricName("arcbeam", "droppedDueToLateness")
"""Counters of a grouping's transform, with the names that Beam's own runners use."""

_STRINGS = coders.IterableCoder(coders.StrUtf8Coder())


def _latest(a: Any, b: Any) -> bytes:
    newer = max(a, b, key=mi.extract_gauge_value)
    data: bytes = newer.payload
    return data


def _union(a: Any, b: Any) -> bytes:
    joined = mi.extract_string_set_value(a) | mi.extract_string_set_value(b)
    data: bytes = _STRINGS.encode(sorted(joined))
    return data


def _trie(a: Any, b: Any) -> bytes:
    joined = mi.extract_bounded_trie_value(a).combine(mi.extract_bounded_trie_value(b))
    data: bytes = joined.to_proto().SerializeToString()
    return data


def _histogram(a: Any, b: Any) -> bytes:
    joined: HistogramData = mi.extract_histogram_value(a).combine(mi.extract_histogram_value(b))
    data: bytes = joined.to_proto().SerializeToString()
    return data


_COMBINERS: dict[str, Callable[[Any, Any], bytes]] = {
    mi.SUM_INT64_TYPE: lambda a, b: mi.sum_payload_combiner(a.payload, b.payload),
    mi.DISTRIBUTION_INT64_TYPE: lambda a, b: mi.distribution_payload_combiner(a.payload, b.payload),
    mi.LATEST_INT64_TYPE: _latest,
    mi.STRING_SET_TYPE: _union,
    mi.BOUNDED_TRIE_TYPE: _trie,
    mi.HISTOGRAM_TYPE: _histogram,
}


def parsed(serialized: Iterable[bytes]) -> list[Any]:
    """Parse serialized MonitoringInfos."""
    return [metrics_pb2.MonitoringInfo.FromString(data) for data in serialized]


def seconds_in_transforms(infos: Iterable[Any]) -> float:
    """Return how long transforms have run, by the SDK's sampling: short work may be missed or overestimated."""
    millis: int = sum(mi.extract_counter_value(info) for info in infos if info.urn == mi.TOTAL_MSECS_URN)
    return millis / 1000


def forget_gauges(container: Any) -> None:
    """Remove the gauges of an SDK's metrics container: their values are reported.

    The SDK would report each of them with every later bundle, without a value. A DoFn may have thousands, one for each
    subject of its work, and set few of them in a bundle.
    """
    gauges = [name for name, cell in container.metrics.items() if isinstance(cell, GaugeCell)]
    for name in gauges:
        del container.metrics[name]


class MetricsTable:
    """Monitoring infos by metric and labels, merged as they are added."""

    def __init__(self) -> None:
        self._infos: dict[Any, Any] = {}

    def add(self, infos: Iterable[Any]) -> None:
        """Add MonitoringInfos. A type without a merge function keeps its newest value."""
        for info in infos:
            key = mi.to_key(info)
            known = self._infos.get(key)
            combine = _COMBINERS.get(info.type)
            if known is not None and combine is not None:
                merged = metrics_pb2.MonitoringInfo()
                merged.CopyFrom(info)
                merged.payload = combine(known, info)
                info = merged
            self._infos[key] = info

    def add_serialized(self, infos: Iterable[bytes]) -> None:
        """Add serialized MonitoringInfos."""
        self.add(metrics_pb2.MonitoringInfo.FromString(data) for data in infos)

    def serialized(self) -> list[bytes]:
        """Return all as serialized MonitoringInfos."""
        return [info.SerializeToString() for info in self._infos.values()]


def dropped(transform: str, late: int, closed: int) -> list[bytes]:
    """Return serialized counters of dropped elements: those of expired windows, and those of finished triggers."""
    container = MetricsContainer(transform)
    for name, elements in ((DROPPED_LATE, late), (DROPPED_CLOSED, closed)):
        if elements:
            container.get_counter(name).inc(elements)
    return [info.SerializeToString() for info in container.to_runner_api_monitoring_infos(transform).values()]


def merge_metrics(serialized: Iterable[bytes]) -> list[bytes]:
    """Merge the serialized monitoring infos of many tasks."""
    table = MetricsTable()
    table.add_serialized(serialized)
    return table.serialized()
