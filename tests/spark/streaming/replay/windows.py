"""The windowings and triggers of simulated jobs as those of the SDK.

Owns their functions, types and coders. Must not know stages.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from apache_beam.coders import Coder
from apache_beam.coders.coders import IntervalWindowCoder
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.transforms import trigger, window
from apache_beam.transforms.core import Windowing as SdkWindowing
from apache_beam.utils.timestamp import Duration as SdkDuration
from apache_beam.utils.timestamp import Timestamp as SdkTimestamp

from arcbeam.engine.grouping.strategy import PaneTime
from arcbeam.model.timestamps import Timestamp
from arcbeam.model.windows import GLOBAL_WINDOW, CustomWindow, IntervalWindow, Window
from simulator.scenario.kinds import ALIGNED, SOON, Group
from simulator.scenario.windowings import FIXED_OFFSET, Windowing


def at(micros: int) -> Any:
    """Return the SDK's timestamp."""
    return SdkTimestamp(micros=micros)


def lasting(micros: int) -> Any:
    """Return the SDK's duration."""
    return SdkDuration(micros=micros)


class Named(window.BoundedWindow):  # type: ignore[misc]  # Beam is untyped
    """A user's window, identified by its bytes."""

    def __init__(self, encoded: bytes, last: int) -> None:
        # Of its bounds the SDK knows only the end, which is after the last timestamp.
        super().__init__(at(last + 1))
        self.encoded, self.last = encoded, last

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Named) and (self.encoded, self.last) == (other.encoded, other.last)

    def __hash__(self) -> int:
        return hash((self.encoded, self.last))

    def __repr__(self) -> str:
        return f"Named({self.encoded!r}, {self.last})"


class NamedCoder(Coder):  # type: ignore[misc]
    """Of `Named`."""

    def encode(self, value: Named) -> bytes:
        return b"%d:%b" % (value.last, value.encoded)

    def decode(self, encoded: bytes) -> Named:
        last, _, name = encoded.partition(b":")
        return Named(name, int(last))

    def is_deterministic(self) -> bool:
        return True


def theirs(of: Window) -> Any:
    """Return the SDK's window for a simulated one."""
    match of:
        case IntervalWindow(start, end):
            return window.IntervalWindow(at(start), at(end))
        case CustomWindow(encoded, last):
            return Named(encoded, last)
        case _:
            return window.GlobalWindow()


def ours(of: Any) -> Window:
    """Return the simulated window for one of the SDK's."""
    if isinstance(of, Named):
        return CustomWindow(of.encoded, Timestamp(of.last))
    if isinstance(of, window.GlobalWindow):
        return GLOBAL_WINDOW
    return IntervalWindow(Timestamp(of.start.micros), Timestamp(of.end.micros))


class _Assigned:
    """What the user's own functions have in common."""

    def __init__(self, windowing: Windowing) -> None:
        self.windowing = windowing

    def assign(self, context: Any) -> list[Any]:
        return [theirs(each) for each in self.windowing.fn.assign(Timestamp(context.timestamp.micros))]

    def get_window_coder(self) -> Any:
        named = self.windowing.name in ("lanes", "clusters")
        return NamedCoder() if named else IntervalWindowCoder()

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.windowing == other.windowing  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return hash(self.windowing)


class Assigned(_Assigned, window.NonMergingWindowFn):  # type: ignore[misc]
    """A user's windows that do not merge."""


class Merged(_Assigned, window.WindowFn):  # type: ignore[misc]
    """A user's windows that merge."""

    def merge(self, context: Any) -> None:
        fn: Any = self.windowing.fn
        windows: Collection[Window] = [ours(each) for each in context.windows]
        for merge in fn.merge(windows):
            context.merge([theirs(each) for each in merge.windows], theirs(merge.result))


def windowfn_of(windowing: Windowing) -> Any:
    """Return the SDK's window function, or the user's if there is none."""
    size = windowing.size
    match windowing.name:
        case "global":
            return window.GlobalWindows()
        case "fixed":
            return window.FixedWindows(lasting(size), at(FIXED_OFFSET))
        case "sliding":
            return window.SlidingWindows(lasting(size), lasting(max(size // 2, 1)))
        case "sessions":
            return window.Sessions(lasting(size))
        case "gaps" | "clusters":
            return Merged(windowing)
        case _:
            return Assigned(windowing)


class AfterDelay(trigger.AfterProcessingTime):  # type: ignore[misc]
    """The SDK's trigger, whose delay is in whole seconds, with milliseconds.

    Args:
        milliseconds: the delay.
        period: multiple to which the timer is aligned; 0: it is not.
    """

    def __init__(self, milliseconds: int, period: int = 0) -> None:
        super().__init__(milliseconds // 1000)
        self.milliseconds, self.period = milliseconds, period

    def to_runner_api(self, context: Any) -> Any:
        proto = runner_pb.Trigger()
        transforms = proto.after_processing_time.timestamp_transforms
        transforms.add().delay.delay_millis = self.milliseconds
        if self.period:
            transforms.add().align_to.period = self.period
        return proto

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AfterDelay) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((self.milliseconds, self.period))


def _repeated(of: Any) -> Any:
    return trigger.Repeatedly(of)


_SOON = max(1, SOON // 1000)
SDKS_TRIGGERS: Mapping[str, Callable[[int], Any]] = {
    "watermark": lambda count: trigger.AfterWatermark(),
    "early and late": lambda count: trigger.AfterWatermark(
        early=_repeated(trigger.AfterCount(count)), late=_repeated(trigger.AfterCount(1))
    ),
    "early by the clock": lambda count: trigger.AfterWatermark(
        early=_repeated(AfterDelay(count)), late=_repeated(trigger.AfterCount(1))
    ),
    "repeated watermark": lambda count: trigger.DefaultTrigger(),
    "counts": lambda count: _repeated(trigger.AfterCount(count)),
    "clock": lambda count: _repeated(AfterDelay(count)),
    "count or clock": lambda count: _repeated(trigger.AfterAny(trigger.AfterCount(count), AfterDelay(_SOON))),
    "each": lambda count: _repeated(trigger.AfterEach(trigger.AfterCount(count), trigger.AfterCount(1))),
    "count once": lambda count: trigger.AfterCount(count),
    "watermark or count": lambda count: trigger.OrFinally(trigger.AfterWatermark(), trigger.AfterCount(count + 1)),
    "watermark and count": lambda count: trigger.AfterAll(trigger.AfterWatermark(), trigger.AfterCount(count)),
    "count and clock": lambda count: _repeated(trigger.AfterAll(trigger.AfterCount(count), AfterDelay(_SOON))),
    "aligned clock": lambda count: _repeated(AfterDelay(count, max(1, ALIGNED // 1000))),
    "synchronized": lambda count: _repeated(trigger._AfterSynchronizedProcessingTime()),
    "always": lambda count: trigger.Always(),
    "never": lambda count: trigger._Never(),
}
"""The simulated triggers by name; `tests/spark/streaming/test_replay.py` holds them to `kinds.TRIGGERS`."""
_TIMES = {
    PaneTime.EARLIEST: window.TimestampCombiner.OUTPUT_AT_EARLIEST,
    PaneTime.LATEST: window.TimestampCombiner.OUTPUT_AT_LATEST,
    PaneTime.END_OF_WINDOW: window.TimestampCombiner.OUTPUT_AT_EOW,
}


class Behaving(SdkWindowing):  # type: ignore[misc]
    """A strategy with what the SDK cannot express: when an empty pane is made.

    Args:
        group: the grouping.
    """

    def __init__(self, group: Group) -> None:
        mode = trigger.AccumulationMode
        super().__init__(
            windowfn_of(group.windowing),
            SDKS_TRIGGERS[group.trigger](group.count),
            mode.ACCUMULATING if group.accumulating else mode.DISCARDING,
            _TIMES[group.pane_time],
            lasting(group.lateness),
        )
        self.closes, self.quiet = group.closes, group.quiet

    def to_runner_api(self, context: Any) -> Any:
        proto = super().to_runner_api(context)
        on_time, closing = runner_pb.OnTimeBehavior, runner_pb.ClosingBehavior
        proto.on_time_behavior = on_time.FIRE_IF_NONEMPTY if self.quiet else on_time.FIRE_ALWAYS
        proto.closing_behavior = closing.EMIT_ALWAYS if self.closes else closing.EMIT_IF_NONEMPTY
        return proto

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Behaving)
            and (self.closes, self.quiet) == (other.closes, other.quiet)
            and bool(super().__eq__(other))
        )

    def __hash__(self) -> int:
        return hash((super().__hash__(), self.closes, self.quiet))
