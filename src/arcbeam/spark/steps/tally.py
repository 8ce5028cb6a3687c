"""What the steps of one driver come to: metrics, figures, and a line for each.

Owns which values count as attempted, which as committed. Must not know how a step is run or becomes real.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from arcbeam.engine.watermarks.clocks import shown_time
from arcbeam.engine.watermarks.stages import Times
from arcbeam.harness.bundle.metrics import MetricsTable
from arcbeam.model.rows import BundleReport
from arcbeam.model.timestamps import MAX_TIMESTAMP, Duration
from arcbeam.progressline import Standing


class Tally:
    """What has been done, and what of it is real. Any thread may ask.

    Attributes:
        steps: that were committed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._attempted, self._committed = MetricsTable(), MetricsTable()
        self._open: dict[int, Sequence[BundleReport]] = {}
        self.steps = self._elements = self._tasks = 0
        self._watermark = ""

    def ran(self, step: int, reports: Sequence[BundleReport]) -> None:
        """A run of a step has ended; whether it will be real is not known. It may be run again."""
        with self._lock:
            self._open[step] = reports
            self._attempted.add_serialized(_infos(reports))

    def committed(
        self, step: int, times: Times, took: Duration, *, ran: bool = True
    ) -> tuple[Sequence[BundleReport], str]:
        """A step is real.

        Args:
            step: its number.
            times: its watermarks.
            took: how long its last run was.
            ran: it was proposed with what a run has reported. Else that was refused, if there was any.

        Returns:
            What was reported in it (nothing: a commit without a step), and the step in one line.
        """
        with self._lock:
            reports = self._open.pop(step, ())
            reports = reports if ran else ()
            self._open = {later: of for later, of in self._open.items() if later > step}
            self._committed.add_serialized(_infos(reports))
            elements = sum(report.elements_in for report in reports)
            self.steps += 1
            self._tasks += len(reports)
            self._elements += elements
            # The earliest of all: what the whole job has come to.
            self._watermark = shown_time(min([*times.outputs.values(), *times.inputs.values()], default=MAX_TIMESTAMP))
            line = f"step {step}: {took / 1e6:.2f} s, {elements} elements, watermark {self._watermark}"
        return reports, line

    def standing(self) -> Standing:
        """Where the run stands."""
        with self._lock:
            at = f", watermark {self._watermark}" if self._watermark else ""
            return Standing((f"step {self.steps}{at}",), self._elements, self._tasks)

    def attempted(self) -> list[bytes]:
        """Serialized MonitoringInfos of all runs of steps that have ended, real or not."""
        with self._lock:
            return self._attempted.serialized()

    def real(self) -> list[bytes]:
        """Serialized MonitoringInfos of all committed steps."""
        with self._lock:
            return self._committed.serialized()


def _infos(reports: Sequence[BundleReport]) -> Iterable[bytes]:
    return (info for report in reports for info in report.metrics)
