"""The windows of a time, and the operation of WindowInto, block by block.

Owns for which window functions the windows of many elements are computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from apache_beam.runners import common
from apache_beam.runners.worker import operation_specs
from apache_beam.transforms import core
from apache_beam.transforms.window import (
    FixedWindows,
    GlobalWindows,
    IntervalWindow,
    Sessions,
    SlidingWindows,
    WindowFn,
)
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import PANE_INFO_UNKNOWN, create

from arcbeam.harness.encoding.blocks import Block, Each
from arcbeam.harness.encoding.sdktimes import timestamp_of
from arcbeam.harness.operations.blockoperation import BlockOperation
from arcbeam.sizes import cache_size

_WINDOWS_MAX = cache_size(100_000)
_SESSIONS_MAX = cache_size(4096)
"""Sessions differ for each time, so a large table would cost more memory than it saves time."""


class WindowAssigner:
    """Assigns windows to times. Times that certainly have the same windows share one computation.

    Attributes:
        known: whether the window function depends on the time only.
    """

    def __init__(self, windowfn: Any) -> None:
        self._windowfn = windowfn
        self._key_of = _same_windows(windowfn)
        self.known = self._key_of is not None
        self._gap = windowfn.gap_size.micros if type(windowfn) is Sessions else 0
        self._table: dict[int, tuple[Any, ...]] = {}

    def _assigned(self, time: int) -> tuple[Any, ...]:
        # Equivalent to `Sessions.assign`, which would take longer than all other work on an element here.
        if self._gap:
            return (IntervalWindow(timestamp_of(time), timestamp_of(time + self._gap)),)
        context = WindowFn.AssignContext(Timestamp(micros=time))
        return tuple(self._windowfn.assign(context))

    def of(self, micros: Any) -> Any:
        """Return the column of windows for a column of times; only if `known`."""
        key_of, table = self._key_of, self._table
        assert key_of is not None
        each = type(micros) is Each
        times: list[int] = micros if each else [micros]
        keys = key_of(times)
        for key, time in dict(zip(keys, times, strict=True)).items():
            if key not in table:
                if len(table) > (_SESSIONS_MAX if self._gap else _WINDOWS_MAX):
                    # SUBTLE: not cleared, because it may contain other keys of this call.
                    table = self._table = {known: table[known] for known in keys if known in table}
                table[key] = self._assigned(time)
        if not each:
            return table[keys[0]]
        return table[keys[0]] if keys.count(keys[0]) == len(keys) else Each(map(table.__getitem__, keys))


class WindowIntoOperation(BlockOperation):
    """Assigns windows."""

    def __init__(self, name: Any, spec: Any, factory: Any, input_coder: Any, windowfn: Any) -> None:
        super().__init__(name, spec, factory, input_coder)
        self._windowfn = windowfn
        self._windows = WindowAssigner(windowfn)

    def setup(self, data_sampler: Any = None) -> None:
        """See the SDK's `Operation`."""
        super().setup(data_sampler)
        # In the SDK this is a DoFn. Its runner names the transform if the window function fails.
        name, windowing = self.name_context.logging_name(), core.Windowing(self._windowfn)
        self._runner = common.DoFnRunner(core.DoFn(), (), {}, [], windowing, {None: self.receivers[0]}, step_name=name)

    def _take(self, block: Block) -> None:
        with self.scoped_process_state:
            try:
                if self._windows.known and block.in_one_window():
                    block = Block(block.values, block.micros, self._windows.of(block.micros), PANE_INFO_UNKNOWN)
                else:
                    elements = [assigned for element in block.elements() for assigned in self._assigned(element)]
                    block = Block.of(elements) if elements else block.slice(0, 0)
                self._outputs[0].emit(block)
            except BaseException as e:
                self._runner._reraise_augmented(e)

    def _assigned(self, element: Any) -> Iterator[Any]:
        timestamp = element.timestamp
        for window in element.windows:
            context = WindowFn.AssignContext(timestamp, element=element.value, window=window)
            yield create(element.value, element.timestamp_micros, tuple(self._windowfn.assign(context)))


def _same_windows(windowfn: Any) -> Callable[[list[int]], list[int]] | None:
    """Return a function that numbers times, equally for equal windows; None if windows depend on more than time."""
    kind = type(windowfn)
    if kind is GlobalWindows:
        return lambda times: [0] * len(times)
    if kind is Sessions:
        return lambda times: times
    if kind is FixedWindows:
        period, offset = windowfn.size.micros, windowfn.offset.micros
    elif kind is SlidingWindows and windowfn.size.micros % windowfn.period.micros == 0:
        period, offset = windowfn.period.micros, windowfn.offset.micros
    else:
        return None
    return lambda times: [(time - offset) // period for time in times]


def create_window_into(factory: Any, transform_id: str, transform: Any, payload: Any, consumers: Any) -> Any:
    """Create the operation of a WindowInto, for the SDK's factory."""
    (pcoll,) = transform.inputs.values()
    spec = operation_specs.WorkerFlatten(None, [factory.get_only_output_coder(transform)])
    name = common.NameContext(transform.unique_name, transform_id)
    windowfn = core.Windowing.from_runner_api(payload, factory.context).windowfn
    op = WindowIntoOperation(name, spec, factory, factory.get_windowed_coder(pcoll), windowfn)
    return factory.augment_oldstyle_op(op, transform.unique_name, consumers)
