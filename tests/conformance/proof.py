"""Proves that a test's assertions were evaluated on the runner under test, and not only built.

`assert_that` is a transform: a runner that executes nothing passes every test that consists of it. While a `Proof` is
open, each matcher leaves a mark in a folder of the test, from any process that evaluates it, and each pipeline that
runs is searched for matchers. `Proof.verify` fails the test for every assertion that left no mark, every assertion that
was never in a pipeline that ran, every pipeline that went to another runner, and every pipeline that asserted nothing.

Owns the evidence. Must not know suites, variants or the runner under test.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from apache_beam import Pipeline
from apache_beam.pipeline import PipelineVisitor
from apache_beam.runners.runner import PipelineResult, PipelineRunner, PipelineState
from apache_beam.testing import util

WAIT_SECONDS = 900
"""Seconds that one pipeline of a suite may take; then it is cancelled, and its test fails."""

_beam_map = util.Map
_tokens = itertools.count(1)


class UnprovenError(AssertionError):
    """A test's own checks passed, but nothing shows that they were evaluated on the runner under test."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """The required result of a test's pipelines. By default they succeed, and assert something.

    Attributes:
        error: the pipeline must fail on the runner, with a message that matches this regular expression.
        failing_check: the failure must come from an evaluated assertion.
        probe: the test has no assertions: assert that every unconsumed PCollection has elements.
        reads_results: the test has no assertions in its pipelines, but fails unless their metrics have certain values.
    """

    error: str | None = None
    failing_check: bool = False
    probe: bool = False
    reads_results: bool = False


@dataclass(frozen=True, slots=True)
class Check:
    """One `assert_that`: its matcher's name and the file it marks."""

    name: str
    marks: Path

    def outcomes(self) -> list[str]:
        """Return the outcomes of all evaluations so far, in any order: "began", and then "passed" or "failed"."""
        return self.marks.read_text().split() if self.marks.exists() else []


@dataclass(slots=True)
class Run:
    """One pipeline that ran.

    Attributes:
        checks: its assertions.
        submitted: whether it reached the runner under test.
        state: how it ended, if it did.
        error: the exception of running it, or of waiting for it.
    """

    checks: list[Check]
    submitted: bool = False
    state: str | None = None
    error: BaseException | None = None


def marking(matcher: Callable[[Any], Any], marks: str) -> Callable[[Any], Any]:
    """Return the same matcher, but each evaluation appends its outcome to a file.

    SUBTLE: it is pickled by value and runs on a worker, so it uses no name of this module. One write of a few bytes to
    a file opened for appending is atomic among processes.
    """

    def check(actual: Any) -> Any:
        import os

        def mark(outcome: bytes) -> None:
            file = os.open(marks, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                os.write(file, outcome + b"\n")
            finally:
                os.close(file)

        mark(b"began")
        try:
            result = matcher(actual)
        except BaseException:
            mark(b"failed")
            raise
        mark(b"passed")
        return result

    return check


class _Search(PipelineVisitor):  # type: ignore[misc]  # Beam is untyped
    """Finds a pipeline's assertions, and the PCollections that nothing consumes."""

    def __init__(self) -> None:
        self.checks: list[Check] = []
        self.assertions = 0
        self._produced: list[Any] = []
        self._consumed: set[Any] = set()

    def enter_composite_transform(self, node: Any) -> None:
        self.assertions += type(node.transform).__qualname__ == "assert_that.<locals>.AssertThat"

    def visit_transform(self, node: Any) -> None:
        check = getattr(node.transform, "conformance_check", None)
        if check is not None:
            self.checks.append(check)
        self._produced.extend(node.outputs.values())
        self._consumed.update(node.inputs)
        self._consumed.update(side.pvalue for side in node.side_inputs)

    def unconsumed(self) -> list[Any]:
        return [pcoll for pcoll in self._produced if pcoll not in self._consumed]


def messages(error: BaseException | None) -> Iterator[str]:
    """Yield the messages of an error and of its causes."""
    while error is not None:
        yield f"{type(error).__name__}: {error}"
        error = error.__cause__ or error.__context__


@dataclass(slots=True)
class Proof:
    """The evidence of one test.

    Args:
        expectation: the required result of the test.
        folder: folder for marks; `close` removes it.
        noted: assertions that are not transforms, of every pipeline that runs.
    """

    expectation: Expectation = Expectation()
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="conformance-")))
    built: list[Check] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    noted: list[Check] = field(default_factory=list)
    _running: list[Run] = field(default_factory=list)

    def close(self) -> None:
        """Remove the marks."""
        shutil.rmtree(self.folder, ignore_errors=True)

    @contextlib.contextmanager
    def recording(self) -> Iterator[Proof]:
        """While open, assertions are built to leave marks, and pipelines that run are recorded."""
        beam_run = Pipeline.run

        def map_(fn: Any, *args: Any, **kwargs: Any) -> Any:
            return self._map(fn, *args, **kwargs)

        @functools.wraps(beam_run)
        def run(pipeline: Any, *args: Any, **kwargs: Any) -> Any:
            return self._run(functools.partial(beam_run, pipeline, *args, **kwargs), pipeline)

        # All assertions of the SDK use util.assert_that, under any imported name, which takes its Map from util's
        # globals.
        # takes its Map from util's globals.
        with mock.patch.object(util, "Map", map_), mock.patch.object(Pipeline, "run", run):
            yield self

    def _map(self, fn: Any, *args: Any, **kwargs: Any) -> Any:
        name = getattr(fn, "__qualname__", type(fn).__name__)
        if name.startswith(("assert_that.<locals>", "has_at_least_one.<locals>._apply")):
            return _beam_map(fn, *args, **kwargs)
        check = Check(name, self.folder / f"{next(_tokens)}.marks")
        transform = _beam_map(marking(fn, str(check.marks)), *args, **kwargs)
        transform.conformance_check = check
        self.built.append(check)
        return transform

    def _run(self, beam_run: Callable[[], Any], pipeline: Any) -> Any:
        if self._running:  # the SDK runs a copy of the pipeline, made from its proto
            return beam_run()
        if self.expectation.probe:
            search = _Search()
            pipeline.visit(search)
            for pcoll in search.unconsumed():
                util.assert_that(pcoll, util.is_not_empty(), label="probe")
        search = _Search()
        pipeline.visit(search)
        if search.assertions != len(search.checks):
            raise UnprovenError(f"{search.assertions} assertions, but {len(search.checks)} that leave marks")
        record = Run([*search.checks, *self.noted])
        self.runs.append(record)
        self._running.append(record)
        try:
            return beam_run()
        except BaseException as e:
            record.error = record.error or e
            raise
        finally:
            self._running.pop()

    def watch(
        self,
        runner: PipelineRunner,
        finished: Callable[[PipelineResult], None] | None = None,
        seconds: float | None = WAIT_SECONDS,
    ) -> PipelineRunner:
        """Record what this runner receives, and how it ends.

        Args:
            runner: the runner under test.
            finished: called with the result after each successful wait.
            seconds: how long a pipeline may take; None: forever.
        """
        run_pipeline = runner.run_pipeline

        def watched(*args: Any, **kwargs: Any) -> Any:
            record = self._running[-1] if self._running else Run([])
            if not self._running:
                self.runs.append(record)
            record.submitted = True
            result = run_pipeline(*args, **kwargs)
            wait = result.wait_until_finish

            def wait_until_finish(duration: float | None = None) -> Any:
                limit = duration or (seconds and seconds * 1000)
                try:
                    record.state = wait(duration=limit)
                except BaseException as e:
                    record.error = e
                    raise
                if not PipelineState.is_terminal(record.state) and duration is None:
                    result.cancel()
                    raise UnprovenError(f"not finished after {seconds} s")
                if finished is not None:
                    finished(result)
                return record.state

            result.wait_until_finish = wait_until_finish
            return result

        runner.run_pipeline = watched
        return runner

    def verify(self) -> None:
        """Fail unless the evidence is complete.

        Raises:
            UnprovenError: the evidence is incomplete; the message says what is missing.
        """
        expected, problems = self.expectation, []
        seen = {check.marks for run in self.runs for check in run.checks}
        problems += [
            f"{check.name}: built, but in no pipeline that ran" for check in self.built if check.marks not in seen
        ]
        if not self.runs:
            problems.append("no pipeline ran")
        for number, run in enumerate(self.runs, 1):
            problems += [f"pipeline {number}: {problem}" for problem in self._problems(run)]
        if expected.error is not None and all(run.error is None for run in self.runs):
            problems.append(f"no pipeline failed with {expected.error!r}")
        if problems:
            raise UnprovenError("the test passed, but without evidence:\n  " + "\n  ".join(problems))

    def _problems(self, run: Run) -> Iterator[str]:
        expected = self.expectation
        outcomes = {check: check.outcomes() for check in run.checks}
        if not run.submitted:
            yield "did not reach the runner under test"
        elif run.error is not None:
            message = "\n".join(messages(run.error))
            if expected.error is None:
                yield f"failed, but the test ignored it: {run.error!r}"
            elif not re.search(expected.error, message):
                yield f"failed for another reason than {expected.error!r}: {message}"
            if expected.failing_check and not any("failed" in marks for marks in outcomes.values()):
                yield "failed, but not in an assertion"
        elif run.state != PipelineState.DONE:
            yield f"ended {run.state}" if run.state else "the test did not wait for its end"
        else:
            if not run.checks and not expected.reads_results:
                yield "asserts nothing"
            for check, marks in outcomes.items():
                if "failed" in marks:
                    yield f"{check.name}: failed on the runner, which reported success"
                elif "passed" not in marks:
                    yield f"{check.name}: never evaluated on the runner"
