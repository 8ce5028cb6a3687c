"""Bad input, and the error that the user gets: each mistake once, by name, without the harness's own frames."""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.coders import VarIntCoder
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pvalue import TaggedOutput
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms.userstate import BagStateSpec, ReadModifyWriteStateSpec

from arcbeam import ArcbeamRunner
from arcbeam.errors import (
    ArcbeamError,
    CoderError,
    EnvironmentMismatchError,
    InvalidPipelineError,
    JobCancelledError,
    JobFailedError,
    MissingModuleError,
    UserCodeError,
    WorkerLostError,
)
from arcbeam.spark.session.versions import Versions
from arcbeam.spark.tasks import failure, workerlog
from arcbeam.store.jobtemp.location import JobLocation


def _pipeline(*arguments: str) -> beam.Pipeline:
    return beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions(list(arguments)))


def _refuse_seven(x: int, seen: str) -> int:
    if x == 7:
        with open(seen, "a") as f:
            f.write("x")
        raise ValueError(f"element {x} is not liked")
    return x


def _chained(x: int) -> float:
    try:
        return x / 0
    except ZeroDivisionError as e:
        raise KeyError("nothing to divide") from e


@pytest.mark.contract("API-06", "BAT-04")
@pytest.mark.usefixtures("spark")
def test_user_error_is_reported_once_without_retry(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    with pytest.raises(UserCodeError) as caught, _pipeline() as p:
        _ = p | beam.Create(range(10)) | "Judge" >> beam.Map(_refuse_seven, str(seen)) | beam.combiners.Count.Globally()
    text = str(caught.value)
    assert seen.read_text() == "x"
    assert caught.value.step == "Judge"
    assert text.count("element 7 is not liked") == 1
    assert text.count("Judge") == 1
    assert text.count("Traceback") == 1
    assert text.endswith("\n  element 7\n")
    assert "_refuse_seven" in text
    assert "apache_beam/runners" not in text
    assert "arcbeam/spark" not in text
    assert caught.value.__cause__ is None


@pytest.mark.contract("API-06")
@pytest.mark.usefixtures("spark")
def test_cause_of_user_error_is_reported() -> None:
    with pytest.raises(UserCodeError) as caught, _pipeline() as p:
        _ = p | beam.Create([1]) | "Divide" >> beam.Map(_chained)
    text = str(caught.value)
    assert "KeyError: 'nothing to divide'" in text
    assert "ZeroDivisionError" in text
    assert "direct cause" in text
    assert text.count("nothing to divide") == 2  # the error, and the user's own line of source


class Odd:
    """An element whose coder rejects some values."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"Odd({self.value})" + "!" * 1000


class OddCoder(beam.coders.Coder):
    def encode(self, value: Odd) -> bytes:
        if value.value % 2 == 0:
            raise ValueError("even")
        return str(value.value).encode()

    def decode(self, encoded: bytes) -> Odd:
        return Odd(int(encoded))

    def is_deterministic(self) -> bool:
        return True


@pytest.fixture
def odd_coder() -> Iterator[None]:
    registry = beam.coders.registry
    registry.register_coder(Odd, OddCoder)
    yield
    registry._coders.pop(Odd)
    registry.custom_types.remove(Odd)


def _written_as(p: beam.Pipeline, place: str) -> None:
    given = p | beam.Create([1, 3, 4, 5])
    if place == "values":
        made = given | "Make" >> beam.Map(lambda x: (0, Odd(x))).with_output_types(tuple[int, Odd])
        _ = made | beam.GroupByKey()
    elif place == "keys":
        made = given | "Make" >> beam.Map(lambda x: (Odd(x), 0)).with_output_types(tuple[Odd, int])
        _ = made | beam.GroupByKey()
    else:
        made = given | "Make" >> beam.Map(Odd).with_output_types(Odd)
        if place == "elements":
            _ = made | beam.Reshuffle() | beam.Map(str)
        else:
            _ = p | "Main" >> beam.Create([0]) | beam.Map(lambda x, side: x, beam.pvalue.AsList(made))


@pytest.mark.contract("API-06")
@pytest.mark.usefixtures("spark", "odd_coder")
@pytest.mark.parametrize("place", ["values", "keys", "elements", "side"])
def test_coder_error_names_coder_element_and_transform(place: str) -> None:
    with pytest.raises(CoderError) as caught, _pipeline() as p:
        _written_as(p, place)
    error = caught.value.error
    assert "Odd" in error
    assert "Coder" in error
    assert "even" in error
    assert len(error) < 800
    assert "Make" in caught.value.step


@pytest.mark.contract("API-06")
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("chains", [True, False])
@pytest.mark.parametrize("behind", [beam.GroupByKey(), beam.Reshuffle(), beam.Values()], ids=lambda t: t.label)
def test_element_of_undeclared_type_is_named(behind: beam.PTransform[Any, Any], chains: bool) -> None:
    def wrong(x: int) -> Any:
        return (0, "seven" if x == 7 else x)

    options = [] if chains else ["--disable_optimizations=value_chains"]
    with pytest.raises(CoderError) as caught, _pipeline(*options) as p:
        _ = p | beam.Create(range(10)) | "Make" >> beam.Map(wrong).with_output_types(tuple[int, int]) | behind
    assert "'seven'" in caught.value.error
    assert "VarIntCoder" in caught.value.error
    assert "Make" in caught.value.step


class WrongState(beam.DoFn):
    COUNT = ReadModifyWriteStateSpec("count", VarIntCoder())
    SEEN = BagStateSpec("seen", VarIntCoder())

    def process(
        self,
        element: tuple[int, str],
        count: Any = beam.DoFn.StateParam(COUNT),
        seen: Any = beam.DoFn.StateParam(SEEN),
    ) -> None:
        if element[1] == "write":
            count.write("many")
        else:
            seen.add("several")


@pytest.mark.contract("API-06")
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(("how", "cell", "value"), [("write", "count", "many"), ("add", "seen", "several")])
def test_value_of_wrong_type_names_state_cell(how: str, cell: str, value: str) -> None:
    with pytest.raises(CoderError) as caught, _pipeline() as p:
        _ = p | beam.Create([(1, how)]) | "Keep" >> beam.ParDo(WrongState())
    assert f"state '{cell}'" in caught.value.error
    assert f"'{value}'" in caught.value.error
    assert "Keep" in caught.value.step


@pytest.fixture
def module_of_the_driver() -> Iterator[Any]:
    module = types.ModuleType("only_on_the_driver")
    exec("def twice(x):\n    return 2 * x\n", module.__dict__)
    sys.modules[module.__name__] = module
    yield module
    del sys.modules[module.__name__]


@pytest.mark.contract("API-05")
@pytest.mark.usefixtures("spark")
def test_module_missing_on_worker_is_named(module_of_the_driver: Any) -> None:
    missing = "'only_on_the_driver'"
    with pytest.raises(MissingModuleError, match=missing) as caught, _pipeline() as p:
        _ = p | beam.Create([1]) | "Double" >> beam.Map(module_of_the_driver.twice)
    assert "--extra_package" in caught.value.remedy


@pytest.mark.contract("API-05")
@pytest.mark.usefixtures("spark")
def test_other_versions_on_worker_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    other = types.SimpleNamespace(here=lambda: Versions("3.9", "2.50.0", "0.0.1"))
    monkeypatch.setattr("arcbeam.spark.batch.boundedjob.Versions", other)
    with pytest.raises(EnvironmentMismatchError) as caught, _pipeline() as p:
        _ = p | beam.Create([1]) | beam.Map(str)
    here = Versions.here()
    assert "driver runs Python 3.9, Beam 2.50.0" in str(caught.value)
    assert f"worker runs Python {here.python}, Beam {here.beam}" in str(caught.value)


@pytest.mark.contract("API-04")
def test_pipeline_without_transforms_is_refused() -> None:
    with pytest.raises(InvalidPipelineError, match="no transforms"):
        _pipeline().run()


class Holder(beam.DoFn):
    handle: Any = None

    def process(self, element: Any) -> Iterator[Any]:
        yield element


@pytest.mark.contract("API-04")
def test_unpicklable_dofn_is_named() -> None:
    p = _pipeline()
    held = beam.ParDo(Holder())
    held.fn.handle = (i for i in range(3))
    _ = p | beam.Create([1]) | "Group of steps" >> beam.Map(str) | "Hold" >> held
    with pytest.raises(InvalidPipelineError, match=r"'Hold' .*generator") as caught:
        p.run()
    assert "setup()" in caught.value.remedy


def _to_other(x: int) -> Iterator[Any]:
    yield TaggedOutput("othr" if x == 3 else "other", x)


@pytest.mark.contract("API-06")
@pytest.mark.usefixtures("spark")
def test_undeclared_output_tag_is_named() -> None:
    declared = "'othr'.*'other'"
    with pytest.raises(UserCodeError, match=declared) as caught, _pipeline() as p:
        _ = p | beam.Create([1, 3]) | "Split" >> beam.FlatMap(_to_other).with_outputs("other")
    assert caught.value.step.startswith("Split")


@pytest.mark.usefixtures("spark")
def test_output_tags_without_declaration_are_dropped() -> None:
    with _pipeline() as p:
        split = p | beam.Create([1, 3]) | beam.FlatMap(_to_other).with_outputs()
        assert_that(split.other, equal_to([1]))


@pytest.mark.contract("API-06")
def test_undeclared_tag_is_refused_at_construction() -> None:
    split = _pipeline() | beam.Create([1]) | beam.FlatMap(_to_other).with_outputs("other")
    with pytest.raises(ValueError, match="Tag 'othr' is neither"):
        _ = split.othr


SCRIPT = """
import apache_beam as beam
with beam.Pipeline(argv=["--runner=arcbeam.ArcbeamRunner", "--spark_master=local[1]", {argument!r}]) as p:
    p | beam.Create([1, 2]) | beam.Reshuffle() | "Fail" >> beam.Map(lambda x: {failing})
"""


def _failed(tmp_path: Path, argument: str = "--shards=2", failing: str = "1 // 0") -> str:
    """Return what a script whose pipeline fails writes to stderr."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(argument=argument, failing=failing))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=180)
    assert done.returncode == 1
    return done.stderr


@pytest.mark.contract("API-06")
def test_failing_script_exits_non_zero(tmp_path: Path) -> None:
    assert "--spark_conf 'spark.ui.enabled'" in _failed(tmp_path, "--spark_conf=spark.ui.enabled")


@pytest.mark.long
@pytest.mark.contract("API-06")
def test_spark_does_not_repeat_a_users_error(tmp_path: Path) -> None:
    reported = _failed(tmp_path)
    assert reported.count("ZeroDivisionError: integer") == 1
    assert reported.count("Traceback") == 2, reported
    for of_spark in ("Executor", "TaskSetManager", "BlockManager", "TaskFailedError", "NativeCodeLoader", "log4j"):
        assert of_spark not in reported
    assert "arcbeam/spark" not in reported
    assert len(reported.splitlines()) < 20


@pytest.mark.long
def test_lost_worker_is_logged_without_jvm_frames(tmp_path: Path) -> None:
    reported = _failed(tmp_path, failing="__import__('os')._exit(1)")
    assert "WARN TaskSetManager: Lost task 0.0" in reported
    assert "Python worker exited unexpectedly" in reported
    assert "\tat " not in reported
    assert "WorkerLostError" in reported


# Without Spark: the meaning of exceptions and texts.


def test_spark_sees_one_line(tmp_path: Path) -> None:
    location = JobLocation(str(tmp_path))
    error = UserCodeError("Step", "ValueError: " + "long " * 1000 + "\nsecond", "Traceback…")
    line = failure.record(location, "s1", error)
    assert isinstance(line, failure.TaskFailedError)
    assert "\n" not in str(line)
    assert len(str(line)) < 400
    assert str(failure.recorded(location)) == str(error)


def test_unrecorded_error_is_raised_to_spark_whole(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    error = UserCodeError("Step", "ValueError", "Traceback…")
    assert failure.record(JobLocation(str(tmp_path / "file")), "s1", error) is error


@pytest.mark.parametrize(
    ("text", "kind", "reported"),
    [
        ("Python worker exited unexpectedly (crashed)", WorkerLostError, "died"),
        ("Lost task 1.3 in stage 2.0 (TID 9) (10.0.0.7 executor 4): ExecutorLostFailure", WorkerLostError, "10.0.0.7"),
        ("x\nMemoryError\n", WorkerLostError, "out of memory"),
        ("[OPERATION_CANCELED] by user", JobCancelledError, "cancelled"),
        ("Job 3 cancelled because SparkContext was shut down", JobFailedError, "stopped"),
        ("ModuleNotFoundError: No module named 'arcbeam'", EnvironmentMismatchError, "'arcbeam'"),
        (
            "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.10 than that in driver: 3.11, PySpark",
            EnvironmentMismatchError,
            "Python 3.11; the worker runs Python 3.10",
        ),
        ("something else\nCaused by: java.io.IOException: no space", JobFailedError, "no space"),
        (
            "An exception\narcbeam.fnapi.lost.SdkWorkerLostError: the SDK worker is gone:\n  Broken pipe\n SQLSTATE: 3",
            JobFailedError,
            "the SDK worker is gone:\n  Broken pipe",
        ),
    ],
)
def test_failed_spark_job_is_classified(tmp_path: Path, text: str, kind: type[ArcbeamError], reported: str) -> None:
    found = failure.as_job_failure(RuntimeError(text), JobLocation(str(tmp_path)))
    assert type(found) is kind
    assert reported in str(found)


def test_recorded_error_precedes_sparks_text(tmp_path: Path) -> None:
    location = JobLocation(str(tmp_path))
    location.record_error("s1", pickle.dumps(UserCodeError("Step", "ValueError", "T")))
    assert isinstance(failure.as_job_failure(RuntimeError("crashed"), location), UserCodeError)


@pytest.mark.contract("OPS-03")
def test_log_lines_name_job_stage_and_bundle() -> None:
    record = logging.LogRecord("user", logging.INFO, __file__, 1, "hello", None, None)
    reported = workerlog.TaskFilter()
    workerlog.at("job-1", "s2", types.SimpleNamespace(instruction="s2-7"))
    assert reported.filter(record)
    assert record.__dict__["arcbeam"] == "job-1 s2 s2-7"
    workerlog.at("", "")
    assert reported.filter(record)
    assert record.__dict__["arcbeam"] == "-"


class Tagged(ValueError):
    _tagged_with_step = True


@pytest.mark.parametrize("message", [Tagged("x"), "apitools not found, and …"])
def test_errors_reported_elsewhere_are_not_logged(message: Any) -> None:
    assert not workerlog.TaskFilter().filter(logging.LogRecord("root", logging.ERROR, "", 1, message, None, None))
