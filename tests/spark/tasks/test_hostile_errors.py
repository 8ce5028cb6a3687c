"""Hostile exceptions: what cannot be encoded, printed, pickled or awaited still fails the job immediately."""

from __future__ import annotations

import io
import pickle
import threading
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from pyspark import serializers
from pyspark.util import handle_worker_exception

from arcbeam import ArcbeamRunner
from arcbeam.errors import CoderError, JobFailedError, MissingModuleError, UserCodeError
from arcbeam.harness.bundle import usererrors
from arcbeam.harness.encoding.codererrors import coder_error
from arcbeam.model import texts
from arcbeam.spark.tasks import failure


class TooLong(Exception):
    pass


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text \ud800")

    __repr__ = __str__


class Silent(Exception):
    """Returns its text only after permission."""

    allowed = threading.Event()

    def __str__(self) -> str:
        self.allowed.wait()
        return "late"

    __repr__ = __str__


class Evasive(Exception):
    """Raises for every attribute, also in the traceback module."""

    def __getattr__(self, name: str) -> Any:
        raise ValueError(f"no {name} \ud800")


class Quota(Exception):
    """Cannot be made without its arguments, and cannot be unpickled."""

    def __init__(self, user: str, *, limit: int) -> None:
        super().__init__(f"{user} is over {limit}")
        self.user, self.limit = user, limit


def _raise(x: int, kind: str) -> None:
    match kind:
        case "surrogate":
            raise ValueError("bad name \ud800")
        case "long":
            raise TooLong("x" * 100_000_000)
        case "mute":
            raise Mute
        case "file name":
            exec(compile("1 // 0", "\udcff.py", "exec"))
        case "noted":
            error = KeyError("k")
            error.add_note("note \ud800")
            raise error from Mute("cause")
        case "quota":
            raise Quota("ann", limit=7)
        case "errno":
            raise FileNotFoundError(2, "No such file or directory", "/nowhere/\udcff")


def _pipeline(*arguments: str) -> beam.Pipeline:
    return beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions(list(arguments)))


class Yielding(beam.DoFn):
    def process(self, element: int, kind: str) -> Iterator[int]:
        _raise(element, kind)
        yield element


@pytest.mark.contract("API-06")
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    "step", [beam.Map(_raise, "surrogate"), beam.ParDo(Yielding(), "surrogate")], ids=["map", "do"]
)
def test_unencodable_text_fails_the_job(step: Any) -> None:
    with (
        pytest.raises(ValueError, match=r"ValueError: bad name \\ud800 \[while running 'Fail'\]") as caught,
        _pipeline() as p,
    ):
        _ = p | beam.Create([1]) | "Fail" >> step
    assert isinstance(caught.value, UserCodeError)
    assert caught.value.args == ("bad name \ud800 [while running 'Fail']",)


@pytest.mark.contract("API-06")
@pytest.mark.usefixtures("spark")
def test_text_of_100_megabytes_is_cut() -> None:
    with pytest.raises(TooLong) as caught, _pipeline() as p:
        _ = p | beam.Create([1]) | "Fail" >> beam.Map(_raise, "long")
    assert "characters" in str(caught.value)
    assert len(str(caught.value)) < 3 * texts.CHARACTERS_MAX


@pytest.mark.contract("API-06")
@pytest.mark.usefixtures("spark")
def test_exception_arrives_with_its_attributes() -> None:
    with pytest.raises(Quota) as caught, _pipeline() as p:
        _ = p | beam.Create([1]) | "Spend" >> beam.Map(_raise, "quota")
    error = caught.value
    assert (error.user, error.limit) == ("ann", 7)
    assert error.args == ("ann is over 7 [while running 'Spend']",)
    assert isinstance(error, UserCodeError)
    assert error.step == "Spend"
    assert "Quota: ann is over 7 [while running 'Spend']\nTraceback" in str(error)


def _attempts(spark: Any, before: list[int]) -> int:
    """Count the tasks that have failed in Spark jobs that are not in `before`."""
    tracker = spark.sparkContext.statusTracker()
    new = [job for job in tracker.getJobIdsForGroup(None) if job not in before]
    stages = {stage for job in new for stage in tracker.getJobInfo(job).stageIds}
    return sum(info.numFailedTasks for stage in stages if (info := tracker.getStageInfo(stage)) is not None)


@pytest.mark.contract("API-06")
def test_spark_does_not_retry_a_user_error(spark: Any) -> None:
    before = spark.sparkContext.statusTracker().getJobIdsForGroup(None)
    with pytest.raises(Quota), _pipeline("--shards=1") as p:
        _ = p | beam.Create([1]) | beam.Map(_raise, "quota")
    assert _attempts(spark, before) < 4


# Without Spark.


def _raised(kind: str) -> BaseException:
    try:
        _raise(1, kind)
    except Exception as e:
        return e
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize("kind", ["surrogate", "long", "mute", "file name", "noted", "quota", "errno"])
def test_every_exception_can_be_described(kind: str) -> None:
    reported = usererrors.described(_raised(kind), "Step \ud800")
    assert isinstance(reported, UserCodeError)
    assert str(reported).encode()
    assert len(str(reported)) < 3 * texts.CHARACTERS_MAX
    assert "Traceback" in reported.traceback
    copy = pickle.loads(pickle.dumps(reported))
    assert isinstance(copy, type(_raised(kind)))
    assert str(copy) == str(reported)
    assert _received(failure.one_line(copy))


def _received(error: BaseException) -> str:
    """Return what Spark receives of an exception that leaves a task."""
    sent = io.BytesIO()

    def task(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches
        raise error

    try:
        list(failure.Guarded(task)(iter([])))
    except BaseException as e:
        handle_worker_exception(e, sent)
    sent.seek(0)
    assert serializers.read_int(sent) == serializers.SpecialLengths.PYTHON_EXCEPTION_THROWN
    text = serializers.UTF8Deserializer().loads(sent)
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize("kind", ["surrogate", "long", "mute", "file name", "noted", "errno"])
def test_spark_receives_every_exception(kind: str) -> None:
    assert len(_received(_raised(kind))) < 2 * texts.CHARACTERS_MAX


def test_ordinary_error_is_raised_to_spark_unchanged() -> None:
    error = MemoryError("no room")
    assert failure.fit_for_spark(error) is error
    assert "MemoryError: no room" in _received(error)
    nasty = MemoryError("no room \ud800")
    assert r"MemoryError: no room \ud800" in _received(nasty)


def test_text_that_never_returns_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "SECONDS", 0.05)
    try:
        reported = usererrors.described(Silent(), "Step")
        assert isinstance(reported, UserCodeError)
        assert reported.step == "Step"
        assert reported.error.startswith("Silent (")
        assert isinstance(failure.fit_for_spark(Silent()), failure.TaskFailedError)
        odd = coder_error(beam.coders.VarIntCoder(), "Step", ValueError("odd"), [Silent()])
        assert "<Silent: " in odd.error
    finally:
        Silent.allowed.set()


def test_exception_that_raises_on_access_is_described() -> None:
    reported = usererrors.described(Evasive(), "Step")
    assert isinstance(reported, UserCodeError)
    assert "Evasive" in reported.error
    assert str(reported).encode()


def test_missing_module_is_an_import_error() -> None:
    reported = usererrors.described(ModuleNotFoundError("No module named 'x'", name="x"), "Step")
    assert isinstance(reported, MissingModuleError)
    assert isinstance(pickle.loads(pickle.dumps(reported)), ImportError)
    assert reported.name == "x"


def test_coder_error_is_caught_by_its_causes_type() -> None:
    cause = OverflowError("too large")
    reported = coder_error(beam.coders.VarIntCoder(), "Step", cause, ["x"])
    reported.__cause__ = cause
    found = pickle.loads(pickle.dumps(usererrors.described(reported, "")))
    assert isinstance(found, CoderError)
    assert isinstance(found, OverflowError)


def test_exit_of_worker_does_not_exit_driver() -> None:
    for ending in (SystemExit(3), StopIteration(7), GeneratorExit()):
        reported = pickle.loads(pickle.dumps(usererrors.described(ending, "Step")))
        assert type(reported) is UserCodeError


def test_unencodable_warning_is_passed_on(spark: Any) -> None:
    def warn(x: int) -> int:
        warnings.warn("odd \ud800", stacklevel=1)
        return x

    with pytest.warns(UserWarning, match=r"odd \\ud800"), _pipeline() as p:
        _ = p | beam.Create([1]) | beam.Map(warn)


@pytest.mark.usefixtures("spark")
def test_unencodable_counter_name_fails_the_job() -> None:
    def count(x: int) -> int:
        beam.metrics.Metrics.counter("tests", "odd \ud800").inc()
        return x

    with pytest.raises(JobFailedError), _pipeline() as p:
        _ = p | beam.Create([1]) | "Count" >> beam.Map(count)


def test_traceback_is_printed_once() -> None:
    reported = pickle.loads(pickle.dumps(usererrors.described(_raised("noted"), "Step")))
    assert isinstance(reported, KeyError)
    text = "".join(traceback.format_exception(reported))
    assert text.count("Traceback (most recent") == 1
    assert text.count("\nnote ") == 1
