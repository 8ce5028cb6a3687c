"""Panes of a windowing strategy, without a pipeline around them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from apache_beam.runners.pipeline_context import PipelineContext
from apache_beam.transforms.core import Windowing
from apache_beam.transforms.trigger import (
    AccumulationMode,
)
from apache_beam.transforms.window import (
    TimestampCombiner,
)
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import PaneInfoTiming, WindowedValue

from arcbeam.harness.batch.panes import Pane, Panes
from arcbeam.harness.batch.triggered import strategy_of

DISCARDING, ACCUMULATING = AccumulationMode.DISCARDING, AccumulationMode.ACCUMULATING
EOW, EARLIEST, LATEST = (
    TimestampCombiner.OUTPUT_AT_EOW,
    TimestampCombiner.OUTPUT_AT_EARLIEST,
    TimestampCombiner.OUTPUT_AT_LATEST,
)
EARLY, ON_TIME, LATE = PaneInfoTiming.EARLY, PaneInfoTiming.ON_TIME, PaneInfoTiming.LATE


def proto_of(windowing: Windowing) -> Any:
    context = PipelineContext()
    context.default_environment_id = lambda: ""  # type: ignore[method-assign]
    return windowing.to_runner_api(context)


def panes_of(windowing: Windowing) -> Panes:
    return Panes(strategy_of(proto_of(windowing), windowing.windowfn))


def assigned(windowfn: Any, times: Iterable[float]) -> list[WindowedValue]:
    """Elements that are their own timestamps, but for their number, which tells them apart."""
    return [
        WindowedValue((n, time), Timestamp(time), tuple(windowfn.assign(windowfn.AssignContext(Timestamp(time)))))
        for n, time in enumerate(times)
    ]


def taken(panes: Panes) -> list[Pane]:
    out, panes.out = panes.out, []
    return out
