"""Totals of one driver's micro-batches: metrics, figures, and a line of text for each.

Owns which values count as attempted and which as committed. Must not know how a micro-batch runs or commits.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from arcbeam.console.progressline import JobProgress
from arcbeam.engine.watermarks.clocks import Port, shown_time
from arcbeam.engine.watermarks.stages import WatermarkTimes
from arcbeam.harness.bundle.metrics import MetricsTable, parsed, seconds_in_transforms
from arcbeam.model.rows import BundleReport, Passed
from arcbeam.model.timestamps import Duration


class Counters:
    """Totals of what was attempted and what was committed. Callable from any thread.

    Attributes:
        micro_batches: how many were committed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._attempted, self._committed = MetricsTable(), MetricsTable()
        self._open: dict[int, _Run] = {}
        self.micro_batches = self._newest = self._elements = self._tasks = 0
        self._watermark = ""

    def ran(self, micro_batch: int, reports: Sequence[BundleReport]) -> None:
        """Add a run of a micro-batch that has ended. It is perhaps not committed, and may run again."""
        run = _Run(reports, [parsed(report.metrics) for report in reports])
        with self._lock:
            self._open[micro_batch] = run
            self._attempted.add(run.infos())

    def figures(
        self, micro_batch: int, levels: Mapping[str, int], ports: Mapping[tuple[str, int], Port]
    ) -> dict[str, Any]:
        """Return figures of the last run of a micro-batch, other than those that its stages report.

        Args:
            micro_batch: its number.
            levels: levels of the stages.
            ports: output ports, by stage and channel.

        Returns:
            JSON values. `user`: seconds in transforms, of the longest task of each level, as the SDK samples them.
            `outputs`: by stage and output, the elements and bytes of the output, and the least, the greatest and the
            mean of its event times in microseconds (None: unknown).
        """
        with self._lock:
            run = self._open.get(micro_batch)
        if run is None:
            return {}
        seconds: dict[tuple[int, int], float] = {}
        outputs: dict[str, dict[str, list[int | None]]] = {}
        left: dict[Port, tuple[int, Passed]] = {}
        for report, infos in zip(run.reports, run.parsed, strict=True):
            task = levels[report.stage], report.shard
            seconds[task] = seconds.get(task, 0.0) + seconds_in_transforms(infos)
            for channel, elements in report.elements_out.items():
                port = ports.get((report.stage, channel))
                if port is None:
                    continue
                before, passed = left.setdefault(port, (0, Passed()))
                passed.add(report.passed.get(channel, _NONE))
                left[port] = before + elements, passed
        for port, (elements, passed) in left.items():
            count = passed.counted
            times = [passed.least, passed.most, passed.total // count] if count else [None, None, None]
            outputs.setdefault(port.stage, {})[port.output] = [elements, passed.bytes, *times]
        longest: dict[int, float] = {}
        for (level, _), each in seconds.items():
            longest[level] = max(longest.get(level, 0.0), each)
        return {"user": round(sum(longest.values()), 3), "outputs": outputs}

    def committed(
        self, micro_batch: int, times: WatermarkTimes, took: Duration, *, ran: bool = True
    ) -> tuple[Sequence[BundleReport], str]:
        """Add a committed micro-batch.

        Args:
            micro_batch: its number.
            times: its watermarks.
            took: how long its last run took.
            ran: whether the proposal contains the reports of a run. If not, the run was refused or there was none.

        Returns:
            The reports of the micro-batch (empty: a commit without a run), and the micro-batch in one line.
        """
        with self._lock:
            run = self._open.pop(micro_batch, _NOTHING)
            run = run if ran else _NOTHING
            self._open = {later: of for later, of in self._open.items() if later > micro_batch}
            self._committed.add(run.infos())
            reports = run.reports
            elements = sum(report.elements_in for report in reports)
            self.micro_batches += 1
            self._newest = micro_batch
            self._tasks += len(reports)
            self._elements += elements
            self._watermark = shown_time(times.earliest)
            line = f"micro-batch {micro_batch}: {took / 1e6:.2f} s, {elements} elements, watermark {self._watermark}"
        return reports, line

    def progress(self) -> JobProgress:
        """Return the progress of the run."""
        with self._lock:
            at = f", watermark {self._watermark}" if self._watermark else ""
            return JobProgress((f"micro-batch {self._newest}{at}",), self._elements, self._tasks)

    def attempted(self) -> list[bytes]:
        """Return the serialized MonitoringInfos of all ended runs of micro-batches, committed or not."""
        with self._lock:
            return self._attempted.serialized()

    def committed_metrics(self) -> list[bytes]:
        """Return the serialized MonitoringInfos of all committed micro-batches."""
        with self._lock:
            return self._committed.serialized()


@dataclass(frozen=True, slots=True)
class _Run:
    """The reports of a run of a micro-batch; `parsed` has the metrics of each report."""

    reports: Sequence[BundleReport]
    parsed: Sequence[Sequence[Any]]

    def infos(self) -> Iterable[Any]:
        return (info for infos in self.parsed for info in infos)


_NOTHING = _Run((), ())
_NONE = Passed()
