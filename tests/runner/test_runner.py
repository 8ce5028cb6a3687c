"""The user's handle of a pipeline, while it runs and afterwards."""

from __future__ import annotations

import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.metrics import Metrics, MetricsFilter
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.expansion_service import ExpansionServiceServicer
from apache_beam.testing.util import assert_that, equal_to

from arcbeam import ArcbeamRunner
from arcbeam.errors import InvalidPipelineError, UnsupportedPipelineError, UserCodeError
from arcbeam.runner.jobgraph import stored_job_graph
from arcbeam.runner.resume import resume
from arcbeam.runner.runner import script_name
from arcbeam.store.blobs.errors import StoreError
from arcbeam.store.blobs.folder import FolderBlobs
from tests.notes import note
from tests.waiting import while_running


def _pipeline(*arguments: str) -> beam.Pipeline:
    return beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions(list(arguments)))


class Waits(beam.DoFn):
    """Counts its elements, and waits for a file."""

    def __init__(self, gate: str) -> None:
        self._gate = gate
        self._seen = Metrics.counter("test", "seen")

    def process(self, element: int) -> Iterator[int]:
        self._seen.inc()
        while not Path(self._gate).exists():
            time.sleep(0.01)
        yield element


@pytest.mark.contract("API-04")
def test_invalid_options_are_refused() -> None:
    p = _pipeline("--shards=0", "--bundle_seconds=-1", "--bundle_elements=7", "--sdf_round_seconds=0")
    _ = p | beam.Create([1])
    with pytest.raises(InvalidPipelineError, match=r"shards=0 \(at least 1\), --bundle_seconds=-1.0 \(at least 0\)\n"):
        p.run()
    p = _pipeline("--spark_master=local", "--spark_remote=local")
    _ = p | beam.Create([1])
    with pytest.raises(InvalidPipelineError, match="--spark_master and --spark_remote"):
        p.run()


@pytest.mark.contract("API-03")
def test_environment_of_a_job_server_is_refused() -> None:
    p = _pipeline("--environment_type=LOOPBACK")
    _ = p | beam.Create([1])
    with pytest.raises(
        InvalidPipelineError, match=r"(?s)--environment_type=LOOPBACK is for job servers.*arcbeam serve"
    ):
        p.run()


def double(n: int) -> int:
    return 2 * n


@beam.PTransform.register_urn("arcbeam:test:runner:double:v1", None)
class Doubled(beam.PTransform):
    def expand(self, pcoll: beam.PCollection[int]) -> beam.PCollection[int]:
        return pcoll | beam.Map(double).with_output_types(int)

    def to_runner_api_parameter(self, context: object) -> tuple[str, None]:
        return "arcbeam:test:runner:double:v1", None

    @staticmethod
    def from_runner_api_parameter(*_: object) -> Doubled:
        return Doubled()


def _expanded(*environment: str) -> beam.Pipeline:
    """Return a pipeline with a transform of an expansion service, which runs in an environment."""
    options = [*environment, "--experiments=disable_logging_submission_environment", "--sdk_location=container"]
    service = ExpansionServiceServicer(PipelineOptions(list(options)))
    p = _pipeline()
    numbers = p | beam.Create([1, 2]) | beam.Map(lambda n: n).with_output_types(int)
    doubled = numbers | "Other" >> beam.ExternalTransform("arcbeam:test:runner:double:v1", None, service)
    assert_that(doubled, equal_to([2, 4]))
    return p


@pytest.mark.contract("IO-01", "API-08")
@pytest.mark.parametrize(
    ("environment", "shown"),
    [
        (["--environment_type=DOCKER", "--environment_config=my/java:1"], "the container image 'my/java:1'"),
        (["--environment_type=EXTERNAL", "--environment_config=localhost:7"], "the SDK workers at localhost:7"),
        (["--environment_type=PROCESS", '--environment_config={"command": "/opt/boot"}'], "the command '/opt/boot'"),
    ],
    ids=["docker", "external", "process"],
)
def test_expanded_transform_with_own_workers_is_refused(environment: list[str], shown: str) -> None:
    p = _expanded(*environment)
    with pytest.raises(UnsupportedPipelineError) as refused:
        p.run()
    assert {item.transform.partition("/")[0] for item in refused.value.items} == {"Other"}
    assert str(refused.value).count(shown) == len(refused.value.items)
    assert "arcbeam serve" in str(refused.value)


@pytest.mark.contract("IO-01")
@pytest.mark.usefixtures("spark")
def test_expanded_python_transform_runs_in_sparks_workers() -> None:
    assert _expanded("--environment_type=DOCKER").run().wait_until_finish() == "DONE"


@pytest.mark.parametrize(
    ("file", "name"),
    [("/jobs/nightly.py", "nightly"), ("a b.py", "a-b"), ("/jobs/report/__main__.py", "report"), (None, "")],
)
def test_job_without_name_has_name_of_script(monkeypatch: pytest.MonkeyPatch, file: str | None, name: str) -> None:
    main = types.ModuleType("__main__")
    main.__file__ = file
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert script_name() == name


@pytest.mark.contract("API-06")
@pytest.mark.usefixtures("spark")
def test_result_changes_from_running_to_done(tmp_path: Path) -> None:
    p = _pipeline()
    _ = p | beam.Create([1, 2, 3]) | beam.ParDo(Waits(str(tmp_path / "gate")))
    result = p.run()
    assert result.state == "RUNNING"
    assert result.wait_until_finish(10) == "RUNNING"
    (tmp_path / "gate").touch()
    assert result.wait_until_finish() == "DONE"
    assert result.cancel() == "DONE", "a job that is done cannot be cancelled"
    (seen,) = result.metrics().query(MetricsFilter().with_name("seen"))["counters"]
    assert (seen.attempted, seen.committed) == (3, 3)


@pytest.mark.contract("END-04")
@pytest.mark.usefixtures("spark")
def test_cancelled_bounded_job_has_nothing_to_resume(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    p = _pipeline("--keep_job_temp", f"--arcbeam_temp={tmp_path / 'jobs'}")
    _ = p | beam.Create([1]) | beam.Map(note, str(tmp_path)) | beam.ParDo(Waits(str(tmp_path / "gate")))
    result = p.run()
    while_running(result, lambda: list(tmp_path.glob("[0-9]*")))
    assert result.cancel() == "CANCELLED"
    assert f"{result.plan.name}: cancelled; it keeps no state: run it again from the beginning" in caplog.text
    assert [folder.name for folder in (tmp_path / "jobs").iterdir()] == [result.job_id], "kept, as it was asked for"


@pytest.mark.contract("STORE-05")
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("is_drain", [False, True])
def test_truncated_pipeline_is_not_resumed_from_its_folder(tmp_path: Path, is_drain: bool) -> None:
    """The job graph would get the truncations once more."""
    options = PipelineOptions(["--streaming", "--job_name=words", f"--checkpoint_dir={tmp_path}"])
    p = beam.Pipeline(runner=ArcbeamRunner(is_drain=is_drain), options=options)
    _ = p | beam.Create([1])
    assert p.run().wait_until_finish() == "DONE"
    if is_drain:
        with pytest.raises(StoreError, match="job graph"):
            resume(str(tmp_path))
    else:
        assert stored_job_graph(FolderBlobs(tmp_path)).name == "words"


@pytest.mark.contract("API-06")
@pytest.mark.usefixtures("spark")
def test_failure_is_raised_at_each_wait() -> None:
    p = _pipeline()
    _ = p | beam.Create([1]) | "Fail" >> beam.Map(lambda x: x // 0)
    result = p.run()
    for _ in range(2):
        with pytest.raises(UserCodeError, match="ZeroDivisionError"):
            result.wait_until_finish()
    assert result.state == "FAILED"


@pytest.mark.contract("API-01")
@pytest.mark.usefixtures("spark")
def test_two_pipelines_run_concurrently() -> None:
    running = []
    for factor in (1, 7):
        p = _pipeline()
        sums = p | beam.Create([(x % 3, x * factor) for x in range(99)]) | beam.CombinePerKey(sum)
        expected = [(k, factor * sum(range(k, 99, 3))) for k in range(3)]
        assert_that(sums, equal_to(expected))
        running.append(p.run())
    assert [result.wait_until_finish() for result in running] == ["DONE", "DONE"]


def test_nondeterministic_key_coder_is_refused() -> None:
    class Coder(beam.coders.Coder):
        def is_deterministic(self) -> bool:
            return False

    class Key:
        pass

    beam.coders.registry.register_coder(Key, Coder)
    try:
        p = _pipeline()
        keyed = p | beam.Create([1]) | beam.Map(lambda x: (Key(), x)).with_output_types(tuple[Key, int])
        _ = keyed | "Group" >> beam.GroupByKey()
        with pytest.raises((InvalidPipelineError, ValueError), match=r"(?i)deterministic"):
            p.run()
    finally:
        beam.coders.registry._coders.pop(Key)
        beam.coders.registry.custom_types.remove(Key)
