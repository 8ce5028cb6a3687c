"""Files and packages of a Python script reach its SDK workers, which the SDK's boot program starts."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from arcbeam.jobs.server import JobServer, ServerSettings
from arcbeam.runner.executor import SparkExecutor
from tests.sdks.goprograms import PYTHON_BOOT, built, process
from tests.sdks.pools import Pool
from tests.spark.tasks.test_artifacts import wheel

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("spark")]

_SCRIPT = """
import os
import sys
from pathlib import Path

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

OUTPUT = sys.argv[1]


class Sum:
    def __init__(self, n):
        self.n = n


class SumCoder(beam.coders.Coder):
    def encode(self, value):
        return str(value.n).encode()

    def decode(self, encoded):
        return Sum(int(encoded))

    def is_deterministic(self):
        return True


beam.coders.registry.register_coder(Sum, SumCoder)


def found(name):
    import arcbeam_extra, arcbeam_required, arcbeam_setup

    staged = Path(os.environ["SEMI_PERSISTENT_DIRECTORY"], "staged", name).read_text()
    coder = type(beam.coders.registry.get_coder(Sum)).__name__
    return f"{arcbeam_extra.VALUE} {arcbeam_required.VALUE} {arcbeam_setup.VALUE} {staged} {coder}"


def write(line):
    with open(OUTPUT, "a") as file:
        file.write(line + "\\n")


if __name__ == "__main__":
    with beam.Pipeline(options=PipelineOptions(sys.argv[2:])) as p:
        names = p | beam.Create(["words.txt"] * 2) | beam.Reshuffle()
        _ = names | "Find" >> beam.Map(found) | "Again" >> beam.Reshuffle() | beam.Map(write)
"""
_SETUP = """
import setuptools

setuptools.setup(name="arcbeam-setup", version="1.0", py_modules=["arcbeam_setup"])
"""


@pytest.fixture(scope="module")
def boot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(PYTHON_BOOT, tmp_path_factory.mktemp("boot"))


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = JobServer(ServerSettings(folder=tmp_path_factory.mktemp("jobs")), SparkExecutor)
    yield server.endpoint
    server.stop()


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    """Return variables for boot programs: a Python in which they may install packages."""
    folder = tmp_path / "venv"
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    # `addsitedir` follows the `.pth` files of that folder, too: installations in place are such files.
    site.joinpath("outer.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    return {"RUN_PYTHON_SDK_IN_DEFAULT_ENVIRONMENT": "1", "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}


def run(folder: Path, endpoint: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the script to its end."""
    script = folder / "script.py"
    script.write_text(_SCRIPT)
    command = [sys.executable, str(script), str(folder / "found"), "--runner=PortableRunner"]
    command += [f"--job_endpoint={endpoint}", "--experiments=pip_use_build_isolation", *options]
    environ = {**os.environ, "PIP_FIND_LINKS": f"{folder} {os.environ.get('PIP_FIND_LINKS', '')}"}
    return subprocess.run(command, capture_output=True, text=True, env=environ, cwd=folder, check=False)


def packages(folder: Path) -> list[str]:
    """Make packages and files; return the options that stage them."""
    (folder / "words.txt").write_text("words")
    extra = wheel(folder, "arcbeam_extra", "1.0", "VALUE = 'extra'\n")
    wheel(folder, "arcbeam_required", "1.5", "VALUE = 'required'\n")
    (folder / "needs.txt").write_text("arcbeam_required==1.5\n")
    source = folder / "source"
    source.mkdir()
    (source / "setup.py").write_text(_SETUP)
    (source / "arcbeam_setup.py").write_text("VALUE = 'setup'\n")
    return [
        *(f"--extra_package={extra}", f"--requirements_file={folder}/needs.txt", f"--setup_file={source}/setup.py"),
        *(f"--files_to_stage={folder}/words.txt", f"--requirements_cache={folder}/cache", "--save_main_session"),
    ]


@pytest.mark.contract("API-05", "API-08")
def test_packages_reach_processes(endpoint: str, boot: Path, variables: dict[str, str], tmp_path: Path) -> None:
    done = run(tmp_path, endpoint, *process(boot, **variables), *packages(tmp_path))
    assert not done.returncode, done.stderr
    assert (tmp_path / "found").read_text().splitlines() == ["extra required setup words SumCoder"] * 2


@pytest.mark.contract("API-05", "API-08")
def test_packages_reach_processes_of_pool(endpoint: str, boot: Path, variables: dict[str, str], tmp_path: Path) -> None:
    started = tmp_path / "started"
    started.write_text(f'#!/bin/sh\nexec {boot} --semi_persist_dir="$(mktemp -d)" "$@"\n')
    started.chmod(0o755)
    pool = Pool(
        tmp_path / "pool", f"--container_executable={started}", environment={**variables, "TMPDIR": str(tmp_path)}
    )
    pool.start()
    try:
        done = run(tmp_path, endpoint, *pool.options, *packages(tmp_path))
    finally:
        pool.kill()
    assert not done.returncode, done.stderr
    assert (tmp_path / "found").read_text().splitlines() == ["extra required setup words SumCoder"] * 2


@pytest.mark.contract("API-06")
def test_missing_module_is_named(endpoint: str, boot: Path, variables: dict[str, str], tmp_path: Path) -> None:
    done = run(tmp_path, endpoint, *process(boot, **variables))
    assert done.returncode
    assert "No module named 'arcbeam_extra' [while running 'Find']" in done.stderr
