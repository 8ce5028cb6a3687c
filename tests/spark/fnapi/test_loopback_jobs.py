"""Jobs whose transforms run in the submitting program, from the SDK's submitter over the job server to Spark."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.coders import VarIntCoder
from apache_beam.metrics import Metrics
from apache_beam.metrics.metric import MetricsFilter
from apache_beam.runners.worker.worker_pool_main import BeamFnExternalWorkerPoolServicer
from apache_beam.testing import test_stream
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import BagStateSpec, TimerSpec, on_timer
from apache_beam.utils.timestamp import Duration

from arcbeam.errors import InvalidPipelineError
from arcbeam.io import WithLate
from arcbeam.runner.resume import resume
from tests.offsets import UpTo

pytestmark = pytest.mark.usefixtures("spark")


seen: list[int] = []
"""Filled by user code: it runs in this process."""


def note(x: int) -> int:
    seen.append(os.getpid())
    Metrics.counter("test", "noted").inc()
    return x


@pytest.mark.contract("API-03", "API-08")
def test_transforms_run_in_the_submitting_program(
    pipeline: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    p = pipeline()
    noted = p | beam.Create(list(range(20))) | "Note" >> beam.Map(note)
    sums = noted | beam.GroupBy(lambda x: x % 2) | "Sum" >> beam.MapTuple(lambda key, some: (key, sum(some)))
    assert_that(sums, equal_to([(0, 90), (1, 100)]))
    result = p.run()
    assert result.wait_until_finish() == "DONE"
    assert seen == [os.getpid()] * 20
    (noted,) = result.metrics().query(MetricsFilter().with_name("noted"))["counters"]
    assert (noted.key.step, noted.committed) == ("Note", 20)
    assert "the submitting program (LOOPBACK): it must run until the job ends" in caplog.text


def fail(x: int) -> int:
    seen.append(x)
    raise ValueError(f"no {x}")


@pytest.mark.contract("API-06")
def test_user_error_is_not_retried_and_names_the_transform(pipeline: Callable[[], Any]) -> None:
    seen.clear()
    p = pipeline()
    _ = p | beam.Create([7]) | "Fail" >> beam.Map(fail)
    with pytest.raises(RuntimeError, match=r"(?s)ValueError: no 7 \[while running 'Fail'\].*in fail"):
        p.run().wait_until_finish()
    assert seen == [7]


class Deferring(beam.DoFn):
    """Defers the rest after each number, with a delay after the first."""

    def process(self, element: int, tracker: Any = beam.DoFn.RestrictionParam(UpTo())) -> Iterator[Any]:
        at = tracker.current_restriction().start
        if tracker.try_claim(at):
            yield element, at
            tracker.defer_remainder(Duration(micros=200_000 if at == 0 else 0))


@pytest.mark.contract("API-03", "SDF-04")
def test_splittable_dofn_runs_in_the_submitting_program(pipeline: Callable[[], Any], tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("a\nb\n")
    p = pipeline()
    assert_that(p | beam.io.ReadFromText(str(tmp_path / "lines")), equal_to(["a", "b"]), label="Lines")
    deferred = p | beam.Create([2, 3]) | beam.ParDo(Deferring())
    assert_that(deferred, equal_to([(n, at) for n in (2, 3) for at in range(n)]), label="Deferred")
    assert p.run().wait_until_finish() == "DONE"


class Counting(beam.DoFn):
    """Counts the elements of a key until a time."""

    BAG = BagStateSpec("bag", VarIntCoder())
    END = TimerSpec("end", TimeDomain.WATERMARK)

    def process(self, element: Any, bag: Any = beam.DoFn.StateParam(BAG), end: Any = beam.DoFn.TimerParam(END)) -> None:
        bag.add(element[1])
        end.set(7)

    @on_timer(END)
    def on_end(self, key: Any = beam.DoFn.KeyParam, bag: Any = beam.DoFn.StateParam(BAG)) -> Iterator[Any]:
        yield key, sorted(bag.read())


@pytest.mark.contract("API-03", "ENG-12")
def test_keys_with_state_share_bundles_in_the_submitting_program(pipeline: Callable[[], Any]) -> None:
    p = pipeline()
    pairs = p | beam.Create([(f"key {n % 30}", n) for n in range(60)])
    assert_that(pairs | beam.ParDo(Counting()), equal_to([(f"key {n}", [n, n + 30]) for n in range(30)]))
    assert p.run().wait_until_finish() == "DONE"


@pytest.mark.contract("API-03", "ENG-09")
def test_script_is_decoded_in_the_submitting_program(pipeline: Callable[[], Any]) -> None:
    script = test_stream.TestStream().add_elements([("a", 1), ("b", 2)]).advance_watermark_to(10)
    script = script.add_elements([("a", 3)]).add_elements([("a", 4)], event_timestamp=5)
    p = pipeline()
    pairs = p | script.advance_watermark_to_infinity() | beam.WindowInto(beam.window.FixedWindows(10))
    groups = pairs | beam.GroupByKey() | beam.MapTuple(lambda key, values: (key, sorted(values)))
    assert_that(groups, equal_to([("a", [1]), ("b", [2]), ("a", [3])]))
    assert p.run().wait_until_finish() == "DONE"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # the workers' threads end so
@pytest.mark.contract("API-08")
def test_job_is_not_resumed_without_its_submitter(pipeline: Callable[..., Any], tmp_path: Path) -> None:
    p = pipeline(f"--checkpoint_dir={tmp_path}/job")
    _ = p | beam.Create([7]) | "Fail" >> beam.Map(fail)
    with pytest.raises(RuntimeError, match="no 7"):
        p.run().wait_until_finish()
    with pytest.raises(InvalidPipelineError, match=r"(?s)does not answer.*LOOPBACK.*run that program again with"):
        resume(f"{tmp_path}/job")


def end_workers() -> None:
    """End the SDK workers of this process, as a crash does."""
    import gc

    from apache_beam.runners.worker import sdk_worker

    for each in gc.get_objects():
        if isinstance(each, sdk_worker.SdkHarness):
            each._control_channel.close()


def end_worker_once(x: int, once: str) -> int:
    if not Path(once).exists():
        Path(once).touch()
        end_workers()
    return x


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # the workers' threads end so
def test_lost_worker_is_replaced(pipeline: Callable[[], Any], tmp_path: Path) -> None:
    p = pipeline()
    out = p | beam.Create([1, 2, 3]) | "End" >> beam.Map(end_worker_once, str(tmp_path / "once"))
    assert_that(out, equal_to([1, 2, 3]))
    assert p.run().wait_until_finish() == "DONE"
    assert (tmp_path / "once").exists()


services: list[Any] = []
"""The servers that start the workers of this process."""


def end_submitter(x: int) -> int:
    """Leave a job as the end of its submitter does: no service, no workers."""
    for each in services:
        each.stop(None)
    end_workers()
    return x


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # the workers' threads end so
@pytest.mark.contract("API-08")
def test_end_of_submitter_is_reported_without_retries(
    pipeline: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = BeamFnExternalWorkerPoolServicer.start

    def start(*args: Any, **kwargs: Any) -> Any:
        address, server = started(*args, **kwargs)
        services.append(server)
        return address, server

    monkeypatch.setattr(BeamFnExternalWorkerPoolServicer, "start", start)
    p = pipeline(f"--checkpoint_dir={tmp_path}/job")
    _ = p | beam.Create([1]) | "End" >> beam.Map(end_submitter)
    again = f"run that program again with --checkpoint_dir={tmp_path}/job: the job resumes after its last commit"
    with pytest.raises(RuntimeError, match=f"(?s)the program that submitted the job has ended.*{again}") as raised:
        p.run().wait_until_finish()
    assert "in a row" not in str(raised.value)


@pytest.mark.contract("API-03", "WM-09")
@pytest.mark.parametrize("grouping", [beam.GroupByKey(), beam.CombinePerKey(sum)])
def test_dropped_elements_reach_the_submitting_program(pipeline: Callable[[], Any], grouping: Any) -> None:
    script = test_stream.TestStream(VarIntCoder()).add_elements([1, 2]).advance_watermark_to(100)
    script = script.add_elements([3, 4], event_timestamp=5).add_elements([5], event_timestamp=105)
    p = pipeline()
    pairs = p | script.advance_watermark_to_infinity() | beam.Map(lambda n: ("even" if n % 2 == 0 else "odd", n))
    grouped, late = pairs | beam.WindowInto(beam.window.FixedWindows(10)) | WithLate(grouping)
    seen = grouped | beam.MapTuple(lambda key, values: (key, values if isinstance(values, int) else sum(values)))
    assert_that(seen, equal_to([("odd", 1), ("even", 2), ("odd", 5)]))
    dropped = late | beam.Map(lambda e: (e.key, e.value, int(e.timestamp), int(e.window.end), e.reason))
    assert_that(dropped, equal_to([("odd", 3, 5, 10, "expired"), ("even", 4, 5, 10, "expired")]), label="Late")
    assert p.run().wait_until_finish() == "DONE"
