"""The SDK's own modules about streams: every test in them that runs a pipeline, bound to a runner.

Their tests make pipelines in every possible way, some with the name of a runner. Here all of them get the runner under
test. Owns which modules, and the replacements of what works in one process only. Must not know how evidence is taken.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import unittest
from collections.abc import Collection, Iterator
from dataclasses import replace
from types import new_class
from typing import Any
from unittest import mock

import apache_beam as beam
from apache_beam.io import fileio_test
from apache_beam.runners.runner import PipelineResult
from apache_beam.testing.test_pipeline import TestPipeline
from apache_beam.transforms import trigger_test, userstate_test

from tests.conformance import inplace, reviewed, suites
from tests.conformance.inplace import Keeping, Records
from tests.conformance.proof import Check, Expectation, marking

MODULES = (
    "testing.test_stream_test",
    "transforms.trigger_test",
    "transforms.userstate_test",
    "transforms.periodicsequence_test",
    "transforms.sideinputs_test",
    "transforms.combiners_test",
    "transforms.deduplicate_test",
    "transforms.util_test",
    "io.fileio_test",
)


class AnyPipeline(suites.Conformance):
    """Mixed in before a suite of these modules: any kind of pipeline runs on the runner under test."""

    def setUp(self) -> None:
        self.enterContext(self._all_pipelines())
        super().setUp()
        for in_files in (inplace.collecting, inplace.counting_waits, inplace.counting_side_effects):
            self.enterContext(in_files(self.proof.folder))

    def _all_pipelines(self) -> contextlib.AbstractContextManager[Any]:
        """While open, a runner given by its name or by the options is the one under test."""
        test, init = self, beam.Pipeline.__init__

        @functools.wraps(init)
        def __init__(pipeline: Any, runner: Any = None, *args: Any, **kwargs: Any) -> None:
            named = runner is None or isinstance(runner, str)
            init(pipeline, test.new_runner() if named else runner, *args, **kwargs)
            if named and not isinstance(pipeline, TestPipeline):
                test.configured(pipeline._options)

        return mock.patch.object(beam.Pipeline, "__init__", __init__)


class Recording(AnyPipeline):
    """Replaces a list in the test's own process, to which DoFns append, by a file."""

    @property
    def _records(self) -> Records:
        return Records(self.proof.folder / "records")

    def record_dofn(self) -> beam.DoFn:
        """Called by the suite."""
        return Keeping(self._records)

    def finished(self, result: PipelineResult) -> None:
        self.suite.all_records = list(self._records)  # type: ignore[attr-defined]


class Stateful(Recording):
    """All of its tests use that list."""

    expectation = Expectation(reads_results=True)


class Transcripts(AnyPipeline):
    """They compare panes in a DoFn of their own: the comparison leaves the marks of an assertion."""

    def setUp(self) -> None:
        super().setUp()
        check = Check("transcript", self.proof.folder / "transcript.marks")
        compare = trigger_test._windowed_value_info_check
        marked = marking(lambda args: compare(*args), str(check.marks))
        self.enterContext(mock.patch.object(trigger_test, compare.__name__, lambda *args: marked(args)))
        self.proof.noted.append(check)


ONE_SHARD = ("BatchElementsTest", "SortAndBatchElementsTest", "GroupIntoBatchesTest", "WriteFilesTest", "WaitOnTest")
"""The content of a batch or a file depends on bundles, and the SDK's tests assume one bundle, or they count."""

_MIXINS: dict[type, type[suites.Conformance]] = {
    userstate_test.StatefulDoFnOnDirectRunnerTest: Stateful,
    fileio_test.WriteFilesTest: Recording,
    trigger_test.TestStreamTranscriptTest: Transcripts,
    trigger_test.WeakTestStreamTranscriptTest: Transcripts,
}


def cases(module: str) -> Iterator[type[unittest.TestCase]]:
    """Yield the test classes of a module of the SDK."""
    loaded = importlib.import_module(f"apache_beam.{module}")
    for case in vars(loaded).values():
        own = isinstance(case, type) and issubclass(case, unittest.TestCase) and case.__module__ == loaded.__name__
        if own and unittest.defaultTestLoader.getTestCaseNames(case):
            yield case


def bound(variant: suites.Variant, module: str, **of_class: Any) -> dict[str, type[suites.Conformance]]:
    """Return the classes of a module with a variant, each with the tests that run a pipeline."""
    classes: dict[str, type[suites.Conformance]] = {}
    for case in cases(module):
        tests = unittest.defaultTestLoader.getTestCaseNames(case)
        without: Collection[str] = reviewed.WITHOUT_PIPELINES.get(case.__name__, ())
        running = [] if "*" in without else [test for test in tests if test not in without]
        alone = case.__name__ in ONE_SHARD
        body = {
            "variant": replace(variant, options={**variant.options, "shards": 1}) if alone else variant,
            **of_class,
        }
        name = f"{case.__name__.removesuffix('Test')}{variant.name}"
        bases = (_MIXINS.get(case, AnyPipeline), case)
        made = new_class(name, bases, {"only": running}, lambda namespace, body=body: namespace.update(body))
        if unittest.defaultTestLoader.getTestCaseNames(made):
            classes[name] = made
    return classes
