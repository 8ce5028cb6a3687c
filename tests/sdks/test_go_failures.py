"""Go workers that crash or do not start: each fails its job once, with one error that names the cause."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from arcbeam.jobs.server import JobServer, ServerSettings
from arcbeam.runner.executor import SparkExecutor
from tests.sdks.goprograms import GO_BOOT, Ran, built, process, programs_in, ran

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("spark"), pytest.mark.contract("API-06", "API-08")]

_SECONDS = 60.0
"""For a job to fail: its worker is started three times, or twice in each of three tries."""
_ELF_MACHINE, _AARCH64 = 18, 0xB7


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with programs_in(tmp_path_factory.mktemp("go")) as binary:
        yield binary


@pytest.fixture(scope="module")
def boot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(GO_BOOT, tmp_path_factory.mktemp("boot"))


@pytest.fixture(scope="module")
def server(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobServer]:
    server = JobServer(ServerSettings(folder=tmp_path_factory.mktemp("jobs")), SparkExecutor)
    yield server
    server.stop()


Failed = Callable[[str, Path, str], str]
"""Runs a program with a worker and a value for its environment; returns the job's error."""


@pytest.fixture
def failed(programs: Path, boot: Path, server: JobServer, tmp_path: Path) -> Failed:
    def run(program: str, worker: Path, environment: str) -> str:
        runner = ("--runner=universal", f"--endpoint={server.endpoint}", f"--worker_binary={worker}")
        began = time.monotonic()
        done: Ran = ran(programs, program, tmp_path, *runner, *process(boot, ARCBEAM_TEST=environment))
        took = time.monotonic() - began
        assert done.code
        assert took < _SECONDS, done.log
        errors = [line for line in done.log.splitlines() if "level=ERROR" in line]
        assert len(errors) == 1, done.log
        assert "Provision info" not in errors[0]
        return errors[0].replace("\\n", "\n")

    return run


def test_exit_in_dofn_is_named(failed: Failed, programs: Path) -> None:
    error = failed("exiting", programs, "")
    assert "go-container' is gone: exit status 3 (its " in error
    assert "'Wrong/main.exit'" in error.splitlines()[0]
    assert "\n  leaving without a reason\n" in error
    assert "in 3 of 3 tries" in error


def test_panic_outside_of_bundle_is_named(failed: Failed, programs: Path) -> None:
    error = failed("crashing", programs, "")
    assert "is gone: exit status 2 (its " in error
    assert "'Wrong/main.crash'" in error.splitlines()[0]
    assert "\n  panic: no harness recovers this\n" in error


def test_panic_before_the_harness_is_named(failed: Failed, programs: Path) -> None:
    error = failed("wordcount", programs, "panic")
    assert "is gone: exit status 2 (its boot program gives up)\n" in error
    assert "\n  panic: no configuration\n" in error
    assert "correct the environment's command" in error


def test_unregistered_type_is_named(failed: Failed, programs: Path) -> None:
    error = failed("unregistered", programs, "unregistered")
    assert "unknownFn" in error


def test_binary_of_another_architecture_is_named(failed: Failed, programs: Path, tmp_path: Path) -> None:
    binary = bytearray(programs.read_bytes())
    binary[_ELF_MACHINE] = _AARCH64
    other = tmp_path / "another" / "worker"
    other.parent.mkdir()
    other.write_bytes(binary)
    other.chmod(0o755)
    assert "exec format error" in failed("wordcount", other, "")


def test_program_without_worker_binary_is_not_submitted(
    programs: Path, boot: Path, server: JobServer, tmp_path: Path
) -> None:
    """The SDK then compiles one, from sources that are not here."""
    runner = ("--runner=universal", f"--endpoint={server.endpoint}", *process(boot))
    found = ran(programs, "wordcount", tmp_path, *runner)
    assert found.code
    assert "failed to cross-compile" in found.log
