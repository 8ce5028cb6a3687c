"""Streaming jobs that are resumed with other workers: Spark's Python workers, or SDK workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.coders import VarIntCoder
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import BagStateSpec, TimerSpec, on_timer
from apache_beam.utils.timestamp import Timestamp
from click.testing import CliRunner

from arcbeam.cli import main
from arcbeam.errors import ArcbeamError
from arcbeam.jobs.environments import EMBEDDED_TYPE
from arcbeam.jobs.server import JobServer, ServerSettings
from arcbeam.runner.executor import SparkExecutor
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("spark")

_SECONDS = 0.05


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = JobServer(ServerSettings(folder=tmp_path_factory.mktemp("jobs")), SparkExecutor)
    yield server.endpoint
    server.stop()


class Ticking(beam.DoFn):
    """Outputs the numbers below a limit, one for each firing of a timer. The number is the tag of the timer.

    Args:
        limit: a file with the limit until which it waits, and the limit at which it ends.
    """

    NEXT = TimerSpec("next", TimeDomain.REAL_TIME)

    def __init__(self, limit: str) -> None:
        self._limit = limit

    def process(self, element: Any, next: Any = beam.DoFn.TimerParam(NEXT)) -> None:
        next.set(Timestamp.now(), dynamic_timer_tag="0")

    @on_timer(NEXT)
    def on_next(
        self,
        key: Any = beam.DoFn.KeyParam,
        tag: Any = beam.DoFn.DynamicTimerTagParam,
        next: Any = beam.DoFn.TimerParam(NEXT),
    ) -> Iterator[Any]:
        number, (wait, end) = int(tag), map(int, Path(self._limit).read_text().split())
        if number < wait:
            yield key, number
            number += 1
        if number < end:
            next.set(Timestamp.now() + _SECONDS, dynamic_timer_tag=str(number))


class Keeping(beam.DoFn):
    """Outputs how many numbers of a key there were."""

    BAG = BagStateSpec("bag", VarIntCoder())

    def process(self, element: Any, bag: Any = beam.DoFn.StateParam(BAG)) -> Iterator[Any]:
        bag.add(element[1])
        yield element[0], len(list(bag.read()))


def append(line: Any, file: str) -> None:
    with open(file, "a") as lines:
        lines.write(f"{line[0]} {line[1]}\n")


def run(environment: str, folder: Path, keeping: bool, endpoint: str, limit: int) -> Any:
    """Submit the job of a folder. It outputs the numbers below a limit; the last limit is 9."""
    partial = Path(f"{folder}.new")
    partial.write_text(f"{limit} 9")
    partial.replace(f"{folder}.limit")
    options = ["--streaming", f"--checkpoint_dir={folder}", "--experiments=disable_logging_submission_environment"]
    options += ["--runner=PortableRunner", f"--job_endpoint={endpoint}", f"--environment_type={environment}"]
    p: Any = beam.Pipeline(options=PipelineOptions(options))
    pairs = p | beam.Create([("a", 0), ("b", 0)])
    numbers = pairs | "Tick" >> beam.ParDo(Ticking(f"{folder}.limit")).with_output_types(tuple[str, int])
    if keeping:
        numbers |= "Keep" >> beam.ParDo(Keeping()).with_output_types(tuple[str, int])
    _ = numbers | beam.Reshuffle() | beam.Map(append, f"{folder}.lines")
    return p.run()


def suspend(folder: Path, limit: int) -> None:
    """Suspend the job in a folder when it waits at a limit."""
    path = Path(f"{folder}.lines")
    until(lambda: path.exists() and len(path.read_text().splitlines()) >= 2 * limit, "the limit")
    suspended = CliRunner().invoke(main.main, ["suspend", str(folder)])
    assert not suspended.exit_code, suspended.output


def lines_of(folder: Path) -> list[str]:
    return sorted(Path(f"{folder}.lines").read_text().splitlines())


@pytest.mark.contract("END-03", "API-03", "STORE-05")
def test_timers_move_between_embedded_and_sdk_workers(endpoint: str, tmp_path: Path) -> None:
    folder = tmp_path / "job"
    for limit, environment in ((3, EMBEDDED_TYPE), (6, "LOOPBACK")):
        run(environment, folder, False, endpoint, limit)
        suspend(folder, limit)
    assert run(EMBEDDED_TYPE, folder, False, endpoint, 9).wait_until_finish() == "DONE"
    assert lines_of(folder) == [f"{key} {number}" for key in "ab" for number in range(9)]


@pytest.mark.contract("END-03", "API-03", "STORE-05")
@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        (EMBEDDED_TYPE, "LOOPBACK", "'Keep' has state of Spark's Python workers.*omit --environment_type"),
        ("LOOPBACK", EMBEDDED_TYPE, "'Keep' has state of SDK workers.*set --environment_type to LOOPBACK"),
    ],
    ids=["to-workers", "from-workers"],
)
def test_state_that_other_workers_cannot_read_is_kept(
    endpoint: str, tmp_path: Path, first: str, second: str, reason: str
) -> None:
    folder = tmp_path / "job"
    run(first, folder, True, endpoint, 3)
    suspend(folder, 3)
    with pytest.raises((RuntimeError, ArcbeamError), match=f"(?s){reason}"):
        run(second, folder, True, endpoint, 9).wait_until_finish()
    assert run(first, folder, True, endpoint, 9).wait_until_finish() == "DONE"
    assert lines_of(folder) == [f"{key} {number}" for key in "ab" for number in range(1, 10)]
