"""The SDK's own suites, bound to a runner, a variant of its options and a proof.

`Conformance` is mixed into a `TestCase` of the SDK: it opens a `Proof` around every test, gives the pipelines their
runner and options, and removes the SDK's own skips. Here are also the suites themselves, with replacements of the local
runner's internals.

Owns which tests there are. Must not know how evidence is taken, nor how results are reported.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import re
import time
import unittest
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from types import new_class
from typing import Any, ClassVar, TypeVar
from unittest import mock

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import DebugOptions, PipelineOptions, PortableOptions, StandardOptions
from apache_beam.runners.portability.fn_api_runner import fn_runner_test
from apache_beam.runners.runner import PipelineResult, PipelineRunner
from apache_beam.testing.test_pipeline import TestPipeline
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms import window

from arcbeam.optimizations import OPTIMIZATIONS
from arcbeam.options import ArcbeamOptions
from tests.conformance import reviewed, runners
from tests.conformance.proof import Expectation, Proof, UnprovenError, messages

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to run that must not change any result.

    Attributes:
        name: for the names of tests.
        options: options of the runner, by name.
        streaming: whether pipelines run as streaming jobs.
        environment: the option `environment_type` of pipelines that are submitted to a job server; "" for others.
        processes: whether user code runs in processes that pytest does not watch.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    streaming: bool = False
    environment: str = ""
    processes: bool = False


DEFAULT = Variant("Default")
NO_FUSION = Variant("NoFusion", {"no_fusion": True})
SINGLE_ELEMENTS = Variant("SingleElements", {"bundle_elements": 1})
ONE_SHARD = Variant("OneShard", {"shards": 1})
SEVEN_SHARDS = Variant("SevenShards", {"shards": 7})
NO_VALUE_CHAINS = Variant("NoValueChains", {"disable_optimizations": ["value_chains"]})
WITHOUT = {
    name: Variant(f"No{name.title().replace('_', '')}", {"disable_optimizations": [name]})
    for name in OPTIMIZATIONS
    if name != "value_chains"
}
NOTHING_ON = Variant("NoOptimizations", {"no_fusion": True, "disable_optimizations": ["all"]})
STREAMING = Variant("Streaming", {"shards": 3}, streaming=True)
STREAMING_NO_FUSION = Variant("StreamingNoFusion", {"shards": 3, "no_fusion": True}, streaming=True)
LOOPBACK = Variant("Loopback", environment="LOOPBACK")
LOOPBACK_STREAMING = Variant("LoopbackStreaming", {"shards": 3}, streaming=True, environment="LOOPBACK")
POOL = Variant("Pool", environment="EXTERNAL", processes=True)
POOL_STREAMING = Variant("PoolStreaming", {"shards": 3}, streaming=True, environment="EXTERNAL", processes=True)
PROCESS = Variant("Process", environment="PROCESS", processes=True)
PROCESS_STREAMING = Variant("ProcessStreaming", {"shards": 3}, streaming=True, environment="PROCESS", processes=True)
CONNECT = Variant("Connect", {"spark_remote": "local[2]"})

VARIANTS = (
    *(DEFAULT, NO_FUSION, SINGLE_ELEMENTS, ONE_SHARD, SEVEN_SHARDS),
    *(NO_VALUE_CHAINS, *WITHOUT.values(), NOTHING_ON),
    *(STREAMING, STREAMING_NO_FUSION),
)


class Conformance(unittest.TestCase):
    """Mixed in before a suite of the SDK.

    Attributes:
        variant: the options of the runner.
        make_runner: makes the runner under test.
        suite: the SDK's class.
        expectation: the default for its tests.
        proof: the evidence of the running test.
    """

    variant: ClassVar[Variant] = DEFAULT
    make_runner: ClassVar[Callable[..., PipelineRunner]] = staticmethod(runners.arcbeam)
    suite: ClassVar[type[unittest.TestCase]]
    expectation: ClassVar[Expectation] = Expectation()
    proof: Proof

    def __init_subclass__(cls, only: Collection[str] | None = None, **kwargs: Any) -> None:
        """Bind the tests: all, or only some. Those reviewed as not to be run are also bound."""
        super().__init_subclass__(**kwargs)
        suites = [base for base in cls.__mro__ if base.__module__.startswith("apache_beam.")]
        if not suites:  # another mixin
            return
        cls.suite = suites[0]
        for name in unittest.defaultTestLoader.getTestCaseNames(cls):
            method = getattr(cls, name)
            if only is not None and name not in only:
                setattr(cls, name, None)  # so that it is not a test
            elif not hasattr(method, "proves"):
                setattr(cls, name, cls._bound(name, method))

    @classmethod
    def _bound(cls, name: str, method: Any) -> Any:
        """Return one test as it runs here: it must pass with evidence, or fail as reviewed, or it does not run."""
        if why := cls._reviewed(reviewed.NOT_RUN, name):
            return pytest.mark.xfail(reason=why, run=False)(_not_run(name, why))
        gap = cls._reviewed(reviewed.GAPS, name)
        if gap is None and cls.variant.options.get("no_fusion"):
            gap = cls._reviewed(reviewed.GAPS_WITHOUT_FUSION, name)
        if gap is None:
            bound = _proven(method)
            return pytest.mark.long(bound) if f"{cls.suite.__name__}.{name}" in reviewed.LONG else bound
        found = cls._reviewed(reviewed.FOUND, name)
        assert found is not None, f"{cls.__name__}.{name}: `reviewed` does not say how it fails"
        return pytest.mark.xfail(reason=gap, raises=KnownGapError)(_proven(method, found))

    def setUp(self) -> None:
        self.proof = Proof(self._reviewed(reviewed.EXPECTATIONS, self._testMethodName) or self.expectation)
        self.addCleanup(self.proof.close)
        self.enterContext(self.proof.recording())
        self.enterContext(self._test_pipelines())
        super().setUp()

    @classmethod
    def _reviewed(cls, table: Mapping[str, _T], name: str) -> _T | None:
        """Return the review of a test under the name of its class, or of a base class."""
        keys = [f"{base.__name__}.{name}" for base in cls.__mro__]
        return next((table[key] for key in keys if key in table), None)

    def new_runner(self, is_drain: bool = False) -> PipelineRunner:
        """Return a new runner under test, which the proof watches."""
        return self.proof.watch(type(self).make_runner(is_drain=is_drain), self.finished)

    def configured(self, options: PipelineOptions) -> PipelineOptions:
        """Return the same options, with those of the variant set."""
        ours = options.view_as(ArcbeamOptions)
        for name, value in self.variant.options.items():
            setattr(ours, name, value)
        if f"{self.suite.__name__}.{self._testMethodName}" in reviewed.IN_ONE_BUNDLE:
            ours.shards = 1
        options.view_as(StandardOptions).streaming |= self.variant.streaming
        if self.variant.environment:
            portable = options.view_as(PortableOptions)
            portable.job_endpoint = portable.job_endpoint or runners.job_endpoint()
            portable.environment_type = self.variant.environment
            # Otherwise the submitter asks pip what is installed, for every pipeline.
            options.view_as(DebugOptions).add_experiment("disable_logging_submission_environment")
        return options

    def assertWarnsRegex(self, *args: Any, **kwargs: Any) -> Any:
        """One test expects a warning about two DoFns in one stage; without fusion, each has its own stage.

        A process of a worker warns there.
        """
        if self.variant.options.get("no_fusion") or self.variant.processes:
            return contextlib.nullcontext()
        return super().assertWarnsRegex(*args, **kwargs)

    def finished(self, result: PipelineResult) -> None:
        """Called with the result of each pipeline that ended."""

    def _test_pipelines(self) -> Any:
        """While open, a `TestPipeline` without a runner uses the one under test."""
        test, init = self, TestPipeline.__init__

        @functools.wraps(init)
        def __init__(pipeline: TestPipeline, runner: Any = None, *args: Any, **kwargs: Any) -> None:
            named = runner is None or isinstance(runner, str)
            init(pipeline, test.new_runner() if named else runner, *args, **kwargs)
            test.configured(pipeline.get_pipeline_options())

        # The option keeps a TestPipeline(is_integration_test=True) from skipping its test.
        return mock.patch.multiple(
            TestPipeline, __init__=__init__, pytest_test_pipeline_options="--runner=arcbeam.ArcbeamRunner"
        )


class KnownGapError(Exception):
    """A test failed as it is known to fail."""


def _proven(method: Any, found: str | None = None) -> Any:
    """Return the same test, but it must leave evidence; it also runs if the SDK skips it.

    Args:
        method: the SDK's test.
        found: the known failure, a regular expression: only that failure is a `KnownGapError`.
    """
    while getattr(method, "__unittest_skip__", False):
        method = method.__wrapped__

    def test(self: Any) -> None:
        try:
            method(self)
            self.proof.verify()
        except unittest.SkipTest as error:
            raise UnprovenError(f"the test skips itself: {error}") from error
        except Exception as error:
            if found is not None and re.search(found, "\n".join(messages(error))):
                raise KnownGapError(found) from error
            raise

    test.__name__, test.__doc__ = method.__name__, method.__doc__
    test.proves = True  # type: ignore[attr-defined]
    return test


def _not_run(name: str, why: str) -> Any:
    """Return the replacement of a test that cannot run: it is reported with the reason, and would fail."""

    def test(self: Any) -> None:
        raise UnprovenError(f"not run: {why}")

    test.__name__ = name
    test.proves = True  # type: ignore[attr-defined]
    return test


class OwnPipelines(Conformance):
    """Mixed in before suites that make their pipelines with the local runner, and allow another one."""

    def create_pipeline(self, is_drain: bool = False) -> beam.Pipeline:
        """Called by the suite to make a pipeline."""
        options = self.configured(PipelineOptions())
        if is_drain and self.variant.environment:
            options.view_as(PortableOptions).job_endpoint = runners.job_endpoint(is_drain=True)
        return beam.Pipeline(runner=self.new_runner(is_drain), options=options)


class FnApi(OwnPipelines, fn_runner_test.FnApiRunnerTest):
    """All of `FnApiRunnerTest`, including what the SDK skips for every runner."""

    def run_sdf_initiated_checkpointing(self, is_drain: bool = False) -> None:
        """The SDK checks the metrics on the local runner only."""
        self._counted: list[int] = []
        super().run_sdf_initiated_checkpointing(is_drain)
        assert self._counted == [len("abc" + "defghijklmno" + "pqrstuv" + "wxyz")]

    def finished(self, result: PipelineResult) -> None:
        if hasattr(self, "_counted"):
            found = result.metrics().query(beam.metrics.MetricsFilter().with_name("my_counter"))
            self._counted = [counter.committed for counter in found["counters"]]

    def test_metrics(self) -> None:
        super().test_metrics(check_gauge=True, check_bounded_trie=True)


class FnApiMetrics(OwnPipelines, fn_runner_test.FnApiRunnerMetricsTest):
    """All of `FnApiRunnerMetricsTest`."""

    def finished(self, result: PipelineResult) -> None:
        """One test reads a private attribute of the local runner's result: infos by stage, "" for the pipeline's own.

        Each runner decides which stages there are. What the test asserts of a stage must also be true of all of the
        job's infos, because it finds them by PCollection and transform.
        """
        infos = list(result.monitoring_metrics().monitoring_infos())
        result._monitoring_infos_by_stage = {"": [], "before": infos, "after": infos}


class Pause:
    """Replaces the local tests' element counter, which stops the worker, in the same process, at an element."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def increment(self) -> None:
        time.sleep(self._seconds)


class FnApiSplit(OwnPipelines, fn_runner_test.FnApiRunnerSplitTest):
    """`FnApiRunnerSplitTest`, as far as it applies to a runner that decides on its own when to split.

    The SDK's tests register a split manager with the local runner, which then requests a split at a given element and
    compares the result. Here the same pipelines run while the runner splits as often as it can (rounds of 20 ms,
    elements of 10 ms). The tests check what must hold for every way of splitting: each element, and each position of
    each restriction, occurs exactly once. They do not check single splits (at which element, with which remainder). The
    test that requests no split runs unchanged.
    """

    rounds: float | None = 0.02

    def configured(self, options: PipelineOptions) -> PipelineOptions:
        if self.rounds is not None:
            options.view_as(ArcbeamOptions).sdf_round_seconds = self.rounds
        return super().configured(options)

    def run_split_pipeline(self, split_manager: Any, elements: Any, element_counter: Any = None) -> None:
        super().run_split_pipeline(split_manager, elements, Pause(0.01))

    def run_sdf_split_pipeline(
        self,
        split_manager: Any,
        elements: Any,
        element_counter: Any,
        expected_groups: Any = None,
        is_drain: bool = False,
    ) -> None:
        groups = expected_groups if self.rounds is None else None
        super().run_sdf_split_pipeline(split_manager, elements, Pause(0.01), groups, is_drain)

    def test_nosplit_sdf(self) -> None:
        self.rounds = None
        super().test_nosplit_sdf()

    def test_split_half(self) -> None:
        """Without the sizes of the local runner's bundles."""
        self.run_split_pipeline(None, range(25))

    def test_time_based_split_manager(self) -> None:
        """Without the local runner's option that says when to split, and so without the number of bundles."""
        elements = [str(x) for x in range(100)]

        def exactly_once_and_bundles_end(actual: list[str]) -> None:
            ends = actual.count("endOfBundle")
            assert ends, "no bundle came to its end"
            equal_to([*elements, *["endOfBundle"] * ends])(actual)

        with self.create_pipeline() as p:
            assert_that(
                p | beam.Create(elements) | beam.ParDo(_SlowWithBundleEnds()),
                exactly_once_and_bundles_end,
            )


class _SlowWithBundleEnds(beam.DoFn):  # type: ignore[misc]  # Beam is untyped
    def process(self, element: str) -> Iterator[str]:
        time.sleep(0.005)
        yield element

    def finish_bundle(self) -> Iterator[Any]:
        yield window.GlobalWindows.windowed_value("endOfBundle")


VALIDATES_RUNNER = (
    "metrics.metric_test",
    "ml.inference.base_test",
    "pipeline_test",
    "runners.dataflow.dataflow_exercise_streaming_metrics_pipeline_test",
    "runners.portability.fn_api_runner.fn_runner_test",
    "runners.portability.fn_api_runner.translations_test",
    "transforms.combinefn_lifecycle_test",
    "transforms.combiners_test",
    "transforms.deduplicate_test",
    "transforms.dofn_lifecycle_test",
    "transforms.ptransform_test",
    "transforms.sideinputs_test",
    "transforms.util_test",
)
"""Every module of the wheel that holds a test marked `it_validatesrunner` (see test_harness)."""


def _marked(test: Any) -> bool:
    marks = getattr(test, "pytestmark", [])
    return any(mark.name == "it_validatesrunner" for mark in marks)


def validates_runner() -> Iterator[tuple[type[unittest.TestCase], list[str]]]:
    """Yield the SDK's classes with the names of those tests that apply to every runner."""
    for name in VALIDATES_RUNNER:
        module = importlib.import_module(f"apache_beam.{name}")
        for case in vars(module).values():
            if isinstance(case, type) and issubclass(case, unittest.TestCase) and case.__module__ == module.__name__:
                tests = unittest.defaultTestLoader.getTestCaseNames(case)
                marked = [test for test in tests if _marked(case) or _marked(getattr(case, test))]
                if marked:
                    yield case, marked


def bound(
    variant: Variant, make_runner: Callable[..., PipelineRunner] = runners.arcbeam
) -> dict[str, type[Conformance]]:
    """Return the classes of `validates_runner` with one variant and one runner, each with only the tests to be run."""
    classes: dict[str, type[Conformance]] = {}
    for case, marked in validates_runner():
        mixin = OwnPipelines if case.__module__ == fn_runner_test.__name__ else Conformance
        body = {"variant": variant, "make_runner": staticmethod(make_runner)}
        name = f"{case.__name__.removesuffix('Test')}{variant.name}"
        bound = new_class(name, (mixin, case), {"only": marked}, lambda namespace, body=body: namespace.update(body))
        if unittest.defaultTestLoader.getTestCaseNames(bound):
            classes[name] = bound
    return classes
