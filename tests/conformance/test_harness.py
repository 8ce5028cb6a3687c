"""The harness itself: a runner that does nothing fails it, it omits no test, and its lists are correct."""

from __future__ import annotations

import unittest
from collections.abc import Callable, Iterator
from pathlib import Path
from types import new_class
from typing import Any, ClassVar

import apache_beam as beam
import pytest
from apache_beam.runners.portability import fn_api_runner, portable_runner_test
from apache_beam.runners.portability.fn_api_runner import fn_runner_test
from apache_beam.runners.runner import PipelineResult, PipelineState
from apache_beam.testing.util import assert_that, equal_to

from tests.conformance import (
    modules,
    reviewed,
    runners,
    suites,
    test_fn_api,
    test_fn_api_streaming,
    test_portable,
    test_streaming_modules,
)
from tests.conformance.proof import Expectation, Proof, UnprovenError

_EMPTY: dict[str, Any] = {"make_runner": staticmethod(runners.empty)}


def _on_empty_runner() -> Iterator[type[suites.Conformance]]:
    for suite in (suites.FnApi, suites.FnApiMetrics, suites.FnApiSplit):
        yield type(f"{suite.__name__}Empty", (suite,), dict(_EMPTY))
    # Its pipelines do not reach a job server.
    yield type("PortableEmpty", (suites.OwnPipelines, portable_runner_test.PortableRunnerTest), dict(_EMPTY))
    yield from suites.bound(suites.Variant("Empty"), runners.empty).values()


def _of_modules() -> Iterator[type[suites.Conformance]]:
    for module in modules.MODULES:
        yield from modules.bound(suites.Variant("OfModulesEmpty"), module, **_EMPTY).values()


@pytest.mark.parametrize(
    "case",
    [
        *(
            pytest.param(case, marks=[pytest.mark.long] * (case.__name__ in ("FnApiEmpty", "PortableEmpty")))
            for case in _on_empty_runner()
        ),
        *(pytest.param(case, marks=pytest.mark.long) for case in _of_modules()),
    ],
    ids=lambda case: case.__name__,
)
def test_no_test_passes_on_an_empty_runner(case: type[suites.Conformance]) -> None:
    names = unittest.defaultTestLoader.getTestCaseNames(case)
    assert names
    passed = []
    for name in names:
        result = unittest.TestResult()
        case(name).run(result)
        if not (result.errors or result.failures):
            passed.append(name)
    assert passed == []


def _tests(suite: type[unittest.TestCase]) -> set[str]:
    return set(unittest.defaultTestLoader.getTestCaseNames(suite))


def test_no_fn_api_test_is_omitted() -> None:
    assert _tests(suites.FnApi) == _tests(fn_runner_test.FnApiRunnerTest)
    assert _tests(suites.FnApiMetrics) == _tests(fn_runner_test.FnApiRunnerMetricsTest)
    assert _tests(suites.FnApiSplit) == _tests(fn_runner_test.FnApiRunnerSplitTest)
    portable = _tests(portable_runner_test.PortableRunnerTest)
    assert _tests(test_portable.PortableDefault) == _tests(test_portable.PortableNoFusion)
    assert _tests(test_portable.PortableDefault) == portable - set(test_portable.DRAINING)
    assert _tests(test_portable.PortableDraining) == set(test_portable.DRAINING)


@pytest.mark.parametrize(
    "variant", [suites.DEFAULT, suites.STREAMING, suites.STREAMING_NO_FUSION], ids=lambda v: v.name
)
def test_no_validates_runner_test_is_omitted(variant: suites.Variant) -> None:
    requested = [(case.__name__, test) for case, marked in suites.validates_runner() for test in marked]
    assert sorted(_bound(suites.bound(variant))) == sorted(requested)


@pytest.mark.parametrize("variant", [suites.STREAMING, suites.STREAMING_NO_FUSION], ids=lambda v: v.name)
def test_no_streaming_test_with_pipeline_is_omitted(variant: suites.Variant) -> None:
    for module in modules.MODULES:
        without = reviewed.WITHOUT_PIPELINES
        of_module = [(case.__name__, _tests(case), without.get(case.__name__, ())) for case in modules.cases(module)]
        running = [(name, test) for name, tests, left in of_module if "*" not in left for test in tests - set(left)]
        assert sorted(_bound(modules.bound(variant, module))) == sorted(running)
        names = {f"{name.removesuffix('Test')}{variant.name}" for name, _ in running}
        assert names <= set(vars(test_streaming_modules)), "bound, but not collected"


def _bound(classes: dict[str, type[suites.Conformance]]) -> Iterator[tuple[str, str]]:
    for case in classes.values():
        yield from ((case.suite.__name__, test) for test in _tests(case))


@pytest.mark.parametrize(
    "case",
    [
        test_fn_api.FnApiDefault,
        test_fn_api.FnApiNoFusion,
        test_fn_api_streaming.FnApiStreaming,
        test_fn_api_streaming.FnApiStreamingNoFusion,
    ],
    ids=lambda case: case.__name__,
)
def test_fn_api_suite_is_complete_and_must_pass(case: type[suites.Conformance]) -> None:
    tests = _tests(case)
    assert len(tests) == 75
    for name in tests:
        test = getattr(case, name)
        assert {mark.name for mark in getattr(test, "pytestmark", [])} <= {"long"}, f"{name} need not pass"
        assert test.proves


def test_skipped_test_is_reported_with_reason() -> None:
    case = modules.bound(suites.STREAMING, "io.fileio_test")["MatchIntegrationStreaming"]
    (mark,) = case.test_transform_on_gcs.pytestmark
    assert (mark.name, mark.kwargs["run"]) == ("xfail", False)
    assert mark.kwargs["reason"] == reviewed.NOT_RUN["MatchIntegrationTest.test_transform_on_gcs"]
    assert _outcome(case("test_transform_on_gcs")) == "failed"


def test_each_known_failure_has_its_error() -> None:
    assert set(reviewed.FOUND) == {*reviewed.GAPS, *reviewed.GAPS_WITHOUT_FUSION}


def _outcome(case: unittest.TestCase) -> str:
    result = unittest.TestResult()
    case.run(result)
    if result.skipped:
        return "skipped"
    found = [text for _, text in (*result.errors, *result.failures)]
    return "passed" if not found else "known" if "KnownGapError" in found[0] else "failed"


class _OfTheSdk(unittest.TestCase):
    __test__ = False  # for pytest: only the bound class is tested, below

    def test_known(self) -> None:
        raise RuntimeError("as it is known")

    def test_other(self) -> None:
        raise RuntimeError("in another way")

    def test_skipped(self) -> None:
        self.skipTest("not here")


_OfTheSdk.__module__ = "apache_beam.pretended"


def test_known_failure_must_have_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("test_known", "test_other"):
        monkeypatch.setitem(reviewed.GAPS, f"_OfTheSdk.{name}", "a reason")
        monkeypatch.setitem(reviewed.FOUND, f"_OfTheSdk.{name}", "as it is known$")
    case = type("Known", (suites.Conformance, _OfTheSdk), {})
    (mark,) = case.test_known.pytestmark
    assert (mark.name, mark.kwargs["raises"]) == ("xfail", suites.KnownGapError)
    assert _outcome(case("test_known")) == "known"
    assert _outcome(case("test_other")) == "failed"


def test_test_that_skips_itself_fails() -> None:
    case = type("Skipping", (suites.Conformance, _OfTheSdk), {})
    assert _outcome(case("test_skipped")) == "failed"


def test_tests_listed_without_pipeline_run_none() -> None:
    left = {name: set(tests) for name, tests in reviewed.WITHOUT_PIPELINES.items()}
    for case in (case for module in modules.MODULES for case in modules.cases(module)):
        without = left.pop(case.__name__, set())
        tests = _tests(case)
        left_out = tests if "*" in without else without
        assert left_out <= tests, f"{case.__name__} has no {left_out - tests}"
        body = {**_EMPTY, "variant": suites.STREAMING, "ran": []}
        made = new_class(
            "Left", (_Noticing, case), {"only": left_out}, lambda namespace, body=body: namespace.update(body)
        )
        for name in _tests(made) & left_out:
            made(name).run(unittest.TestResult())
            assert made.ran == [], f"{case.__name__}.{name} runs a pipeline"
    assert left == {}


class _Noticing(modules.AnyPipeline):
    """Records the pipelines that ran."""

    ran: ClassVar[list[Any]]

    def tearDown(self) -> None:
        super().tearDown()
        self.ran.extend(self.proof.runs)


def test_no_test_is_skipped() -> None:
    for case in (*_on_empty_runner(), *_of_modules()):
        for name in _tests(case):
            assert not getattr(getattr(case, name), "__unittest_skip__", False), f"{case.__name__}.{name}"


def test_modules_with_validates_runner_tests_are_known() -> None:
    wheel = Path(beam.__file__).parent
    found = {
        ".".join(path.relative_to(wheel).with_suffix("").parts)
        for path in wheel.rglob("*_test.py")
        if "@pytest.mark.it_validatesrunner" in path.read_text(encoding="utf-8")
    }
    assert found == set(suites.VALIDATES_RUNNER)


def test_reviewed_tests_exist() -> None:
    there = {f"PortableRunnerTest.{test}" for test in _tests(portable_runner_test.PortableRunnerTest)}
    there |= {f"{case.__name__}.{test}" for case, marked in suites.validates_runner() for test in marked}
    for suite in (suites.FnApi, suites.FnApiMetrics, suites.FnApiSplit):
        there |= {f"{suite.suite.__name__}.{test}" for test in _tests(suite)}
    cases = [case for module in modules.MODULES for case in modules.cases(module)]
    there |= {f"{case.__name__}.{test}" for case in cases for test in _tests(case)}
    there |= {f"{base.__name__}.{test}" for case in cases for base in case.__mro__ for test in _tests(case)}
    named = {*reviewed.SAMPLE, *reviewed.EXPECTATIONS, *reviewed.FOUND, *reviewed.NOT_RUN, *reviewed.IN_ONE_BUNDLE}
    named |= reviewed.LONG
    assert named - there == set()


# --- the proof, on the SDK's local runner, whose workers are in this process


class _ForgivingRunner(fn_api_runner.FnApiRunner):  # type: ignore[misc]  # Beam is untyped
    """Runs everything, but always reports success."""

    def run_pipeline(self, pipeline: Any, options: Any) -> PipelineResult:
        try:
            return super().run_pipeline(pipeline, options)
        except Exception:
            return runners.EmptyResult(PipelineState.DONE)


@pytest.fixture
def proof() -> Iterator[Proof]:
    proof = Proof()
    with proof.recording():
        yield proof
    proof.close()


def _numbers(pipeline: beam.Pipeline, label: str = "Numbers") -> Any:
    return pipeline | label >> beam.Create([1, 2])


def _on(proof: Proof, make: Callable[[], Any] = fn_api_runner.FnApiRunner) -> beam.Pipeline:
    return beam.Pipeline(runner=proof.watch(make()))


def test_evaluated_assertion_is_proof(proof: Proof) -> None:
    with _on(proof) as p:
        assert_that(_numbers(p), equal_to([1, 2]))
    proof.verify()


def test_unevaluated_assertion_is_not_proof(proof: Proof) -> None:
    with _on(proof, runners.EmptyRunner) as p:
        assert_that(_numbers(p), equal_to([1, 2]))
    with pytest.raises(UnprovenError, match=r"equal_to.*: never evaluated on the runner"):
        proof.verify()


def test_failure_hidden_by_runner_is_found(proof: Proof) -> None:
    with _on(proof, _ForgivingRunner) as p:
        assert_that(_numbers(p), equal_to([3]))
    with pytest.raises(UnprovenError, match="failed on the runner, which reported success"):
        proof.verify()


def test_each_of_several_assertions_needs_its_own_proof(proof: Proof) -> None:
    with _on(proof) as p:
        assert_that(_numbers(p), equal_to([1, 2]))
    assert_that(_numbers(_on(proof)), equal_to([3]))
    with pytest.raises(UnprovenError, match="built, but in no pipeline that ran"):
        proof.verify()


def test_pipeline_without_assertion_is_not_proof(proof: Proof) -> None:
    with _on(proof) as p:
        _numbers(p)
    with pytest.raises(UnprovenError, match="asserts nothing"):
        proof.verify()


def test_probe_asserts_for_pipeline_without_assertion(proof: Proof) -> None:
    proof.expectation = Expectation(probe=True)
    with _on(proof) as p:
        _numbers(p) | "A" >> beam.Map(str)
        _numbers(p, "More") | "B" >> beam.Map(str)
    proof.verify()
    assert len(proof.runs[0].checks) == 2


def test_test_without_pipeline_is_not_proof(proof: Proof) -> None:
    with pytest.raises(UnprovenError, match="no pipeline ran"):
        proof.verify()


def test_pipeline_on_another_runner_is_not_proof(proof: Proof) -> None:
    with beam.Pipeline(runner=fn_api_runner.FnApiRunner()) as p:
        assert_that(_numbers(p), equal_to([1, 2]))
    with pytest.raises(UnprovenError, match="did not reach the runner under test"):
        proof.verify()


def test_job_without_wait_is_not_proof(proof: Proof) -> None:
    p = _on(proof)
    assert_that(_numbers(p), equal_to([1, 2]))
    p.run()
    with pytest.raises(UnprovenError, match="did not wait for its end"):
        proof.verify()


def test_failure_must_be_the_expected_one(proof: Proof) -> None:
    proof.expectation = Expectation(error="Failed assert", failing_check=True)
    with pytest.raises(Exception, match="Failed assert"), _on(proof) as p:
        assert_that(_numbers(p), equal_to([3]))
    proof.verify()

    proof.expectation = Expectation(error="another")
    with pytest.raises(UnprovenError, match="failed for another reason"):
        proof.verify()

    proof.expectation = Expectation()
    with pytest.raises(UnprovenError, match="the test ignored it"):
        proof.verify()


def test_missing_expected_failure_is_found(proof: Proof) -> None:
    proof.expectation = Expectation(error="Failed assert")
    with _on(proof) as p:
        assert_that(_numbers(p), equal_to([1, 2]))
    with pytest.raises(UnprovenError, match="no pipeline failed with"):
        proof.verify()
