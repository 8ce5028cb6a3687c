"""Runs pipelines with and without optimizations, and compares all of their observable results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from apache_beam.metrics import monitoring_infos as mi
from apache_beam.portability.api import metrics_pb2

from arcbeam.harness.bundle.metrics import merge_metrics
from arcbeam.harness.operations.taskcontext import TaskSettings
from arcbeam.optimizations import LOCAL_EXCHANGE, OPTIMIZATIONS
from arcbeam.translate import ParsedPipeline, translate
from arcbeam.translate.proto import pipeline_proto
from tests.harness.drive import Driven, drive


def exact(value: Any) -> str:
    """Return a value as text that distinguishes 1, True and 1.0."""
    if isinstance(value, (tuple, list)):
        return f"{type(value).__name__}({', '.join(map(exact, value))})"
    return f"{type(value).__name__}:{value!r}"


class Outcome:
    """The results of a run.

    Attributes:
        error: (type, text) of the raised error.
        seen: the elements of each `Collect`, with their numbers.
        metrics: counts of elements, and counters of user code, by metric and labels.
        sampled: sampled sizes, by labels.
    """

    def __init__(self, p: Driven, plan: Any, names: list[str], settings: TaskSettings) -> None:
        self.error: Any = None
        self.seen: dict[str, Counter[Any]] = {}
        self.metrics: dict[Any, Any] = {}
        self.sampled: dict[Any, Any] = {}
        try:
            reports = drive(plan, settings)
        except BaseException as e:
            self.error = type(e), str(e)
            reports = []
        for name in names:
            windowed = p.windowed(name)
            if self.error is None:
                self.seen[name] = Counter((exact(value), time.micros, repr(w)) for value, time, w in windowed)
            windowed.clear()
        for serialized in merge_metrics(data for report in reports for data in report.metrics):
            self._note(metrics_pb2.MonitoringInfo.FromString(serialized))

    def _note(self, info: Any) -> None:
        labels = tuple(sorted(info.labels.items()))
        if info.urn == mi.SAMPLED_BYTE_SIZE_URN:
            self.sampled[labels] = mi.extract_distribution(info)
        elif info.urn == mi.ELEMENT_COUNT_URN:
            self.metrics[info.urn, labels] = mi.extract_counter_value(info)
        elif info.urn.startswith("beam:metric:user:"):
            self.metrics[info.urn, labels] = info.payload

    def counts(self) -> dict[Any, int]:
        """Return counts of elements by labels."""
        return {labels: count for (urn, labels), count in self.metrics.items() if urn == mi.ELEMENT_COUNT_URN}

    def values(self, name: str = "") -> list[str]:
        """Return the elements of a `Collect`, as text, in order."""
        return sorted(value for value, _, _ in self.seen[name].elements())


def same(build: Callable[[Driven], Any], names: Iterable[str] = ("",), **settings: Any) -> Outcome:
    """Run a pipeline with all optimizations and with none, and check that all observable results are equal.

    Args:
        build: builds the pipeline; returns the names of its `Collect`s, if they are not `names`.
    """
    p = Driven()
    made = build(p)
    names = made if isinstance(made, list) else list(names)
    proto = pipeline_proto(p)
    plan = translate(ParsedPipeline(proto), name=p.run_id)
    switched = [
        TaskSettings(**dict.fromkeys(OPTIMIZATIONS.keys() - {LOCAL_EXCHANGE}, on), **settings) for on in (False, True)
    ]
    off, on = (Outcome(p, plan, names, each) for each in switched)
    assert on.error == off.error
    assert on.seen == off.seen
    assert on.metrics == off.metrics
    assert on.sampled.keys() == off.sampled.keys()
    for labels, count in on.counts().items():
        # The SDK always samples the first ten.
        if count <= 10:
            assert on.sampled[labels] == off.sampled[labels], labels
    return on
