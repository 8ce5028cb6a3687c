"""Pipelines that wait: `status` and `inspect` show the cause, since when, and what would release it."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms import userstate, window
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.utils.timestamp import Duration, Timestamp
from click.testing import CliRunner

from arcbeam import ArcbeamRunner
from arcbeam.cli import main
from arcbeam.engine.state.statemetrics import StateMetrics
from arcbeam.streaming.status.reasons import Cause
from arcbeam.streaming.status.status import Status
from tests.monitoring.collector import collector, spans_of
from tests.offsets import WholeUpTo
from tests.waiting import while_running

pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.contract("WM-06", "OPS-02")]

WHEN = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"
SINCE = rf"since micro-batch \d+ \({WHEN}\)"
MANY = 1 << 40


class Numbers(beam.DoFn):
    """Yields numbers, each at its own second, and defers the rest after each for a short time.

    Args:
        stalls_at: the number before which it stalls; None: it never stalls.
        seconds: for how long it then defers.
        tells: whether it reports a watermark.
    """

    def __init__(self, stalls_at: int | None = None, seconds: float = 0.05, *, tells: bool = True) -> None:
        self._stalls_at, self._seconds, self._tells = stalls_at, seconds, tells

    @beam.DoFn.unbounded_per_element()
    def process(
        self,
        element: int,
        tracker: Any = beam.DoFn.RestrictionParam(WholeUpTo()),
        watermark: Any = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider()),
    ) -> Iterator[Any]:
        n = tracker.current_restriction().start
        # Of several elements, the first reports no watermark.
        idle = not self._tells and element == MANY
        if n == self._stalls_at or idle:
            tracker.defer_remainder(Duration(micros=int(self._seconds * 1e6)))
            return
        if not tracker.try_claim(n):
            return
        yield window.TimestampedValue(n, n)
        watermark.set_watermark(Timestamp(n))
        tracker.defer_remainder(Duration(micros=50_000))


def numbers(p: beam.Pipeline, name: str, *of: int, **how: Any) -> Any:
    return p | f"{name} of" >> beam.Create(of or [MANY], reshuffle=False) | name >> beam.ParDo(Numbers(**how))


def grouped(of: Any) -> Any:
    return (
        of
        | "Keyed" >> beam.Map(lambda n: (0, n))
        | "Windows" >> beam.WindowInto(window.FixedWindows(4))
        | "Grouped" >> beam.GroupByKey()
    )


class Remembers(beam.DoFn):
    """Keeps its input, and sets two event time timers that the watermark does not reach."""

    SEEN = userstate.BagStateSpec("seen", beam.coders.VarIntCoder())
    SUM = userstate.CombiningValueStateSpec("sum", sum)
    FAR = userstate.TimerSpec("far", TimeDomain.WATERMARK)

    def process(
        self,
        pair: tuple[int, int],
        seen: Any = beam.DoFn.StateParam(SEEN),
        total: Any = beam.DoFn.StateParam(SUM),
        far: Any = beam.DoFn.TimerParam(FAR),
    ) -> None:
        seen.add(pair[1])
        if pair[0] % 2:
            total.add(pair[1])
        for tag in ("one", "other"):
            far.set(1000, dynamic_timer_tag=tag)

    @userstate.on_timer(FAR)
    def far(self) -> None:
        raise AssertionError("it is far away")


def test_resumed_driver_keeps_counts_of_keys_and_timers(tmp_path: Path) -> None:
    def until(keys: int, stalls_at: int) -> StateMetrics:
        p = beam.Pipeline(
            runner=ArcbeamRunner(),
            options=PipelineOptions(["--streaming", "--shards=2", f"--checkpoint_dir={tmp_path}"]),
        )
        of = numbers(p, "Read", stalls_at=stalls_at)
        _ = (
            of
            | "By itself" >> beam.Map(lambda n: (n, n)).with_output_types(tuple[int, int])
            | "Keeps" >> beam.ParDo(Remembers())
        )
        _ = grouped(of)
        result = p.run()
        try:
            while True:
                status = result.status()
                stages = {} if status is None else {each.stage: each.kept for each in status.stages}
                kept = next((of for name, of in stages.items() if name.startswith("Keeps")), None)
                if kept is not None and kept.keys >= keys:
                    (group,) = (of for name, of in stages.items() if name.startswith("Grouped"))
                    assert group is not None
                    assert group.event_timers >= 1, "a window waits for its end"
                    assert group.keys >= group.event_timers
                    return kept
                assert result.wait_until_finish(50) == "RUNNING"
        finally:
            result.cancel()

    assert until(3, 3) == StateMetrics(cells={"seen": 3, "sum": 1}, event_timers=6)
    more = until(6, 6)
    assert (more.keys, more.cells, more.event_timers) == (6, {"seen": 6, "sum": 3}, 12)


def stuck(folder: Path, build: Callable[[beam.Pipeline], Any], is_it: Callable[[Cause], bool]) -> Cause:
    """Run a pipeline until one of its watermarks has waited for some micro-batches; return the cause.

    The running job, its folder while it runs, and the folder alone must show the same cause.
    """
    p = beam.Pipeline(
        runner=ArcbeamRunner(), options=PipelineOptions(["--streaming", "--shards=2", f"--checkpoint_dir={folder}"])
    )
    build(p)
    result = p.run()

    def known(status: Status | None) -> Cause | None:
        found = None if status is None else next(filter(is_it, status.causes), None)
        waits = found is not None and found.since is not None and found.since.micro_batch < status.micro_batch  # type: ignore[union-attr]
        return found if waits else None

    try:
        cause = while_running(result, lambda: known(result.status()))
        reported = [_status(folder)]
    finally:
        result.cancel()
    reported += [_status(folder), _inspect(folder)]
    for causes in reported:
        # Not by name: a restriction that is deferred repeatedly has another name each time.
        (same,) = (each for each in causes if (each["stage"], each["kind"]) == (cause.stage, cause.kind))
        assert same["time"] == cause.time
        assert same["since"] == {"micro_batch": cause.since.micro_batch, "time": cause.since.time}  # type: ignore[union-attr]
    lines = _invoke("inspect", str(folder))
    assert same["released_when"] in lines
    assert same["text"] in lines
    assert same["text"] in _invoke("status", str(folder))
    return cause


def _invoke(*arguments: str) -> str:
    result = CliRunner().invoke(main.main, list(arguments))
    assert result.exit_code == 0, result.output
    return result.stdout


def _status(folder: Path) -> list[Any]:
    found: list[Any] = json.loads(_invoke("status", str(folder), "--json"))["causes"]
    return found


def _inspect(folder: Path) -> list[Any]:
    found: list[Any] = json.loads(_invoke("inspect", str(folder), "--json"))["causes"]
    return found


def test_stalled_source_is_named(tmp_path: Path) -> None:
    cause = stuck(
        tmp_path,
        lambda p: grouped(numbers(p, "Meter", stalls_at=5)),
        lambda cause: cause.kind == "restriction" and cause.time == 4_000_000,
    )
    assert re.match(
        rf".* input of '.*Meter.*' .*1970-01-01T00:00:04Z,? {SINCE}.* "
        rf"restriction of element {MANY} in shard \d",
        cause.text,
    )
    assert "estimator" in cause.released_when
    assert any("Grouped" in stage for stage in cause.stages)


def test_deferred_restriction_is_named(tmp_path: Path) -> None:
    def build(p: beam.Pipeline) -> None:
        _ = grouped((numbers(p, "Late", stalls_at=5, seconds=3600), numbers(p, "Steady")) | beam.Flatten())

    def is_deferred(cause: Any) -> bool:
        # Before, it is being processed.
        return "Late" in cause.stage and cause.time == 4_000_000 and "deferred" in cause.text

    cause = stuck(tmp_path, build, is_deferred)
    assert re.match(
        rf".* input of '.*Late.*' .*1970-01-01T00:00:04Z,? {SINCE}.* "
        rf"restriction of element {MANY} in shard \d .*deferred.* {WHEN}",
        cause.text,
    )
    # Until the other restriction has ended, a policy of 'Keyed' is another way.
    assert re.match(rf".*clock.* {WHEN}(.*'Keyed'.*WithWatermarkPolicy.*idle_after.*)?", cause.released_when)
    assert cause.by_clock
    assert cause.due is not None
    assert cause.since is not None
    assert 3590e6 < cause.due - cause.since.time < 3610e6


def test_missing_side_input_is_named(tmp_path: Path) -> None:
    def build(p: beam.Pipeline) -> None:
        rates = numbers(p, "Rates", stalls_at=0) | "Of a minute" >> beam.WindowInto(window.FixedWindows(60))
        read = numbers(p, "Meter") | "In minutes" >> beam.WindowInto(window.FixedWindows(60))
        _ = read | "Priced" >> beam.Map(lambda n, rate: n * rate, beam.pvalue.AsSingleton(rates))

    cause = stuck(tmp_path, build, lambda cause: cause.kind == "side input")
    assert re.match(
        rf".* input of '.*' .*1970-01-01T00:00:00Z,? {SINCE}.* in shard \d.* side input.*"
        rf"output '.*' of '.*Rates.*' .*restriction of element {MANY} in shard \d",
        cause.text,
    )
    assert re.match(r".* output '.*' of '.*Rates.*'.* 1970-01-01T00:00:59\.999999Z", cause.released_when)


def test_idle_partition_is_named(tmp_path: Path) -> None:
    cause = stuck(
        tmp_path,
        lambda p: grouped(numbers(p, "Topic", MANY, MANY + 1, tells=False)),
        lambda cause: cause.kind == "restriction" and re.search(r"\(.*\b2\b.*\)", cause.text) is not None,
    )
    assert re.match(
        rf".* input of '.*Topic.*' .*beginning of time,? {SINCE}.* "
        rf"restriction of element {MANY} in shard \d",
        cause.text,
    )
    assert "watermark estimator" in cause.released_when
    assert "arcbeam.io.WithWatermark" in cause.released_when


class Hourly(beam.DoFn):
    """Holds a key's elements for an hour, at the time of its first element."""

    SEEN = userstate.ReadModifyWriteStateSpec("seen", beam.coders.BooleanCoder())
    FLUSH = userstate.TimerSpec("flush", TimeDomain.REAL_TIME)

    def process(
        self,
        element: tuple[str, int],
        seen: Any = beam.DoFn.StateParam(SEEN),
        flush: Any = beam.DoFn.TimerParam(FLUSH),
    ) -> None:
        if not seen.read():
            seen.write(True)
            flush.set(Timestamp.of(time.time() + 3600))

    @userstate.on_timer(FLUSH)
    def flushed(self) -> Iterator[int]:
        yield 1


def test_timer_that_holds_output_timestamp_is_named(tmp_path: Path) -> None:
    def build(p: beam.Pipeline) -> None:
        keyed = numbers(p, "Meter") | "By name" >> beam.Map(lambda n: ("meter", n))
        _ = grouped(keyed | "Hourly" >> beam.ParDo(Hourly()))

    cause = stuck(tmp_path, build, lambda cause: cause.kind == "timer")
    assert re.match(
        rf".* output '.*' of '.*Hourly.*' .*1970-01-01T00:00:00Z,? {SINCE}.* "
        r"timer 'flush' of key '.*meter.*' in shard \d .*output timestamp",
        cause.text,
    )
    assert re.search(rf"clock .*{WHEN}", cause.released_when)


@pytest.mark.contract("OPS-03", "OPS-04", "OPS-09")
def test_job_serves_metrics_and_logs_and_traces_micro_batches(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with collector(200) as (url, traced), caplog.at_level("INFO", logger="arcbeam"):
        options = ["--streaming", "--shards=2", "--metrics_address=0", f"--otlp_endpoint={url}"]
        p = beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions(options))
        _ = grouped(numbers(p, "Meter"))
        result = p.run()

        def passed() -> Status | None:
            status = result.status()
            return status if status is not None and status.watermark >= 8_000_000 else None

        try:
            status = while_running(result, passed)
            (address,) = (m.split()[-1] for m in caplog.messages if re.search(r"Prometheus.* http://\S+$", m))
            with urllib.request.urlopen(address) as page:
                lines = page.read().decode().splitlines()
        finally:
            result.cancel()
    (kept,) = (stage for stage in status.stages if stage.stage.endswith("Grouped"))
    assert kept.state_rows > 0
    assert 0 < kept.state_bytes <= sum(status.state_bytes.values())
    by_shard = dict(kept.state_largest)
    assert len(by_shard) == kept.state_shards <= 2
    assert sum(by_shard.values()) == kept.state_bytes
    assert f'arcbeam_micro_batches_total{{job="{result.plan.name}"}}' in "\n".join(lines)
    (watermark,) = (
        line for line in lines if line.startswith("arcbeam_input_watermark_timestamp_seconds") and "Grouped" in line
    )
    assert 7 <= float(watermark.split()[-1]) < 10_000
    micro_batches = [json.loads(message) for message in caplog.messages if message.startswith('{"pipeline"')]
    assert [micro_batch["micro_batch"] for micro_batch in micro_batches] == list(range(1, len(micro_batches) + 1))
    assert {"seconds", "plan", "spark", "user", "commit"} == micro_batches[-1]["seconds"].keys()
    assert any("Meter" in micro_batch["waits"] for micro_batch in micro_batches)
    spans = [span for _, body in traced for span in spans_of(body) if span.name == "micro-batch"]
    assert len(spans) == len(micro_batches)
    assert all(0 < span.start_time_unix_nano < span.end_time_unix_nano for span in spans)
    made = [out for stage in status.stages for out in stage.outputs if out.least is not None and out.elements]
    assert all(out.least <= out.mean <= out.most and out.bytes for out in made)  # type: ignore[operator]
