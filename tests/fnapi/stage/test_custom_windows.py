"""Window functions that only their SDK knows, in SDK workers: results equal those of embedded Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.coders import Coder, VarIntCoder
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import BagStateSpec, TimerSpec, on_timer
from apache_beam.transforms.window import (
    BoundedWindow,
    FixedWindows,
    NonMergingWindowFn,
    TimestampedValue,
    WindowFn,
)
from apache_beam.utils.timestamp import Timestamp

from arcbeam.errors import UserCodeError
from arcbeam.fnapi.environments.workers import workers_here
from tests.fnapi.stage.inworkers import InWorkers, worker_service
from tests.fnapi.stage.test_loopback import results
from tests.harness.drive import Collect
from tests.harness.streaming.microbatches import InMicroBatches


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    with worker_service() as address:
        yield address


class Decade(BoundedWindow):  # type: ignore[misc]  # Beam is untyped
    """Ten seconds, by their number; and a few more, as the window function decides."""

    def __init__(self, number: int, more: int = 0) -> None:
        super().__init__(Timestamp(10 * (number + 1 + more)))
        self.number, self.more = number, more

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Decade) and (other.number, other.more) == (self.number, self.more)

    def __hash__(self) -> int:
        return hash((self.number, self.more))

    def __repr__(self) -> str:
        return f"Decade({self.number}, {self.more})"


class DecadeCoder(Coder):  # type: ignore[misc]  # Beam is untyped
    """Their numbers as text: its length is in no byte of it."""

    def encode(self, value: Decade) -> bytes:
        return f"{value.number} {value.more}".encode()

    def decode(self, encoded: bytes) -> Decade:
        return Decade(*map(int, encoded.split()))

    def is_deterministic(self) -> bool:
        return True


class Decades(NonMergingWindowFn):  # type: ignore[misc]  # Beam is untyped
    """Windows of a type that the runner does not know."""

    def assign(self, context: Any) -> list[Decade]:
        return [Decade(context.timestamp.micros // 10_000_000)]

    def get_window_coder(self) -> Coder:
        return DecadeCoder()


class Runs(WindowFn):  # type: ignore[misc]  # Beam is untyped
    """Decades that merge with the next ones."""

    def assign(self, context: Any) -> list[Decade]:
        return [Decade(context.timestamp.micros // 10_000_000)]

    def get_window_coder(self) -> Coder:
        return DecadeCoder()

    def merge(self, context: Any) -> None:
        run: list[Decade] = []
        last = 0
        for window in [*sorted(context.windows, key=lambda each: int(each.number)), None]:
            if window is None or (run and window.number > last + 1):
                if len(run) > 1:
                    context.merge(run, Decade(run[0].number, last - run[0].number))
                run, last = [], -1000
            if window is not None:
                run.append(window)
                last = max(last, window.number + window.more)


_NUMBERS = [1, 14, 15, -7, 33, 52, 5, 44]


def _timed(p: Any, windows: Any) -> Any:
    pairs = p | beam.Create([("ab"[n % 2], n) for n in _NUMBERS])
    return pairs | beam.Map(lambda kv: TimestampedValue(kv, kv[1])) | beam.WindowInto(windows)


def _grouped(windows: Any) -> Callable[[Any], None]:
    def make(p: Any) -> None:
        groups = _timed(p, windows) | beam.GroupByKey()
        _ = (
            groups
            | beam.MapTuple(lambda key, values, window=beam.DoFn.WindowParam: (key, sorted(values), repr(window)))
            | "Out" >> beam.WindowInto(beam.window.GlobalWindows())
            | Collect("groups")
        )

    return make


def _grouped_and_passed_on(p: Any) -> None:
    groups = _timed(p, Runs()) | beam.GroupByKey() | beam.Reshuffle()
    _ = (
        groups
        | beam.MapTuple(lambda key, values, window=beam.DoFn.WindowParam: (key, sorted(values), repr(window)))
        | "Out" >> beam.WindowInto(beam.window.GlobalWindows())
        | Collect("groups")
    )


def _combined(p: Any) -> None:
    sums = _timed(p, Runs()) | beam.CombinePerKey(sum)
    _ = sums | "Out" >> beam.WindowInto(beam.window.GlobalWindows()) | Collect("sums")


class Late(beam.DoFn):  # type: ignore[misc]  # Beam is untyped
    """Collects numbers until the end of their window."""

    BAG = BagStateSpec("bag", VarIntCoder())
    END = TimerSpec("end", TimeDomain.WATERMARK)

    def process(
        self,
        element: Any,
        window: Any = beam.DoFn.WindowParam,
        bag: Any = beam.DoFn.StateParam(BAG),
        end: Any = beam.DoFn.TimerParam(END),
    ) -> None:
        bag.add(element[1])
        end.set(window.max_timestamp())

    @on_timer(END)
    def at_end(
        self,
        key: Any = beam.DoFn.KeyParam,
        window: Any = beam.DoFn.WindowParam,
        bag: Any = beam.DoFn.StateParam(BAG),
    ) -> Iterable[Any]:
        yield key, sorted(bag.read()), repr(window)


def _stateful(p: Any) -> None:
    _ = (
        _timed(p, Decades())
        | beam.ParDo(Late())
        | "Out" >> beam.WindowInto(beam.window.GlobalWindows())
        | Collect("collected")
    )


def _sides(p: Any) -> None:
    numbers = p | "Numbers" >> beam.Create([3, 12, 31]) | "At" >> beam.Map(lambda x: TimestampedValue(x, x))
    decades = numbers | beam.WindowInto(Decades())
    keyed = decades | "Key" >> beam.Map(lambda x: (x % 2, x))
    found = (
        p
        | beam.Create(_NUMBERS)
        | beam.Map(lambda x: TimestampedValue(x, x))
        | "Main" >> beam.WindowInto(FixedWindows(5))
        | "Look" >> beam.Map(lambda x, some: (x, sorted(some)), beam.pvalue.AsIter(decades))
        | "Own" >> beam.WindowInto(Decades())
        | "Again" >> beam.Map(lambda pair, of: (*pair, sorted(of[1])), beam.pvalue.AsMultiMap(keyed))
    )
    _ = found | "Out" >> beam.WindowInto(beam.window.GlobalWindows()) | Collect("found")


@pytest.mark.parametrize(
    "make",
    [_grouped(Decades()), _grouped(Runs()), _grouped_and_passed_on, _combined, _stateful, _sides],
    ids=["not merging", "merging", "merging before a reshuffle", "combined", "stateful", "side inputs"],
)
def test_results_equal_those_of_embedded_python(service: str, make: Callable[[Any], None]) -> None:
    with InMicroBatches(None) as expected:
        make(expected)
    with InWorkers(service, bundle_elements=7) as p:
        make(p)
    assert results(p) == results(expected)
    assert not workers_here._workers


class Wrong(Runs):
    """Cannot merge."""

    def merge(self, context: Any) -> None:
        raise ValueError("no merge")


def test_error_of_window_function_is_of_user_code(service: str) -> None:
    p = InWorkers(service)
    _grouped(Wrong())(p)
    with pytest.raises(UserCodeError) as raised:
        p.run()
    assert (raised.value.step, raised.value.error) == ("GroupByKey", "ValueError: no merge")
    assert not workers_here._workers
