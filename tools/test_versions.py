"""Runs the smoke set with each combination of versions that matters, and moves a job from old versions to new ones.

    python tools/test_versions.py                       all of COMBINATIONS and UPGRADES
    python tools/test_versions.py 2.76.0/4.3.0/3.13     the smoke set with one Beam, PySpark and Python
    python tools/test_versions.py 2.76.0/4.1.4/3.11..2.77.0/4.3.0/3.13

A combination of one Python minor version is a layer over a base: the interpreter that runs this for its own version,
for another one an environment with `.[dev]`. The layer has Beam and PySpark of its own. All are below
`build/versions` and are kept; a second run downloads nothing. Other Pythons are looked for on PATH and in pyenv.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "versions"
HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"
SMOKE = [
    "tests/harness/test_sdk_contract.py",
    "tests/spark/batch/test_exchange.py::test_many_shards_for_ten_elements",
    "tests/spark/batch/test_state_and_timers.py",
    "tests/spark/streaming/test_splittable.py::test_deferred_restriction_resumes_when_due",
    "tests/runner/test_steering.py::test_suspended_and_resumed_job_has_undisturbed_output",
    "tests/golden/jobs/test_resume.py::test_suspended_job_of_oldest_beam_resumes",
]
"""Internals of the SDK, batch, state and timers, splittable DoFns, suspend and resume, a folder of another Beam."""


class Combination(NamedTuple):
    """Versions that are used together: Beam and PySpark in full, Python's minor version."""

    beam: str
    spark: str
    python: str

    def __str__(self) -> str:
        return f"Beam {self.beam}, PySpark {self.spark}, Python {self.python}"


COMBINATIONS = [
    *(Combination(beam, spark, "3.11") for beam in ("2.76.0", "2.77.0") for spark in ("4.1.4", "4.2.1", "4.3.0")),
    Combination("2.76.0", "4.1.4", "3.12"),
    Combination("2.77.0", "4.3.0", "3.12"),
    Combination("2.76.0", "4.1.4", "3.13"),
    Combination("2.77.0", "4.3.0", "3.13"),
    Combination("2.76.0", "4.3.0", "3.14"),
    Combination("2.77.0", "4.3.0", "3.14"),
]
"""Each Beam with each Spark; each further Python with both Beams."""
BEAMS = sorted({each.beam.rpartition(".")[0] for each in COMBINATIONS})
"""The minor versions of Beam that are supported."""
UPGRADES = [
    (Combination("2.76.0", "4.3.0", "3.11"), Combination("2.77.0", "4.3.0", "3.11")),
    (Combination("2.76.0", "4.1.4", "3.11"), Combination("2.77.0", "4.3.0", "3.13")),
]
"""A job that is killed, and one that is suspended, with the first versions; resumed with the second."""


class Missing(Exception):
    """A Python that is not installed here."""


def main(arguments: Sequence[str]) -> int:
    """Run what is given, else everything; return 0 if all that could run passed."""
    runs = [tuple(map(parsed, given.split(".."))) for given in arguments]
    outcomes = []
    for versions in runs or [*((each,) for each in COMBINATIONS), *UPGRADES]:
        start = time.monotonic()
        try:
            passed = smoke(*versions) if len(versions) == 1 else upgrade(*versions)
            outcome = f"{'passed' if passed else 'failed'} in {time.monotonic() - start:.0f} s"
        except Missing as missing:
            outcome = f"not run: {missing}" if not runs else f"failed: {missing}"
        outcomes.append(f"{', resumed with '.join(map(str, versions))}: {outcome}")
    print(*outcomes, sep="\n")
    return int(any(": failed" in outcome for outcome in outcomes))


def parsed(given: str) -> Combination:
    """Return the combination of BEAM/PYSPARK/PYTHON; Python may be left out."""
    beam, spark, *python = given.split("/")
    return Combination(beam, spark, python[0] if python else HERE)


def smoke(versions: Combination) -> bool:
    """Run the smoke set."""
    command = [environment(versions), "-m", "pytest", "-q", "-p", "no:cacheprovider", *SMOKE]
    return subprocess.run(command, cwd=ROOT).returncode == 0


def upgrade(old: Combination, new: Combination) -> bool:
    """Run a job of every kind of state with old versions, kill and suspend it, and resume both with new ones."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "jobs"
        made = subprocess.run([environment(old), "-m", "tests.golden.jobs.make", str(folder)], cwd=ROOT)
        archives = [str(folder / f"{name}.tar.gz") for name in ("running", "suspended")]
        resume = [environment(new), "-m", "tests.golden.jobs.resuming", *archives]
        return made.returncode == 0 and subprocess.run(resume, cwd=ROOT).returncode == 0


def environment(versions: Combination) -> str:
    """Make the environment of a combination unless it exists; return its interpreter."""
    beam, spark, minor = versions
    folder = FOLDER / f"beam-{beam}-spark-{spark}-python-{minor}"
    python, made = folder / "bin" / "python", folder / "made"
    if made.exists():
        return str(python)
    base = base_of(minor)
    make_venv(base, folder)
    layer, below = packages(str(python)), packages(base)
    install(base, "--no-deps", "--target", layer, f"apache-beam=={beam}", wheel(spark))
    # SUBTLE: a path file and no PYTHONPATH: the environment's own packages come first, in Spark's workers too.
    Path(layer, "zz_rest.pth").write_text(f"import site; site.addsitedir({below!r})\n", encoding="utf-8")
    command = folder / "bin" / "arcbeam"
    command.write_text(
        f"#!{python}\nimport sys\nfrom arcbeam.cli.main import main\nsys.exit(main())\n", encoding="utf-8"
    )
    command.chmod(0o755)
    made.touch()
    return str(python)


def base_of(minor: str) -> str:
    """Return an interpreter of this minor version with all that arcbeam and its tests need; make it if necessary."""
    if minor == HERE:
        return sys.executable
    folder = FOLDER / f"python-{minor}"
    python, made = folder / "bin" / "python", folder / "made"
    if not made.exists():
        make_venv(found(minor), folder)
        install(str(python), wheel("4.3.0"), "-e", f"{ROOT}[dev]")
        made.touch()
    return str(python)


def found(minor: str) -> str:
    """Return an installed interpreter of this minor version."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    if (on_path := shutil.which(f"python{minor}")) and Path(on_path).parent.name != "shims":
        return on_path
    for python in sorted(pyenv.glob(f"{minor}.*/bin/python")):
        return str(python)
    raise Missing(f"no python{minor} on PATH or in {pyenv}")


def make_venv(python: str, folder: Path) -> None:
    """Make an empty environment."""
    subprocess.run([python, "-m", "venv", "--clear", str(folder)], check=True)


def packages(python: str) -> str:
    """Return where an interpreter's packages are."""
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def install(python: str, *what: str) -> None:
    """Install with pip."""
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *what]
    subprocess.run(command, check=True, cwd=ROOT)


def wheel(spark: str) -> str:
    """Return the wheel of a PySpark: PyPI has sources only, and packing 400 MB once serves every Python."""
    folder = FOLDER / "wheels"
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    if not (wheels := list(folder.glob(f"pyspark-{spark}-*.whl"))):
        subprocess.run([*command, "--wheel-dir", str(folder), f"pyspark=={spark}"], check=True)
        wheels = list(folder.glob(f"pyspark-{spark}-*.whl"))
    return str(wheels[0])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
