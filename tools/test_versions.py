"""Runs the smoke set with each combination of versions that matters.

    python tools/test_versions.py [BEAM/SPARK ...]          for example 2.76.0/4.3.0; default: all of COMBINATIONS

Each combination has an environment below `build/versions`: Beam and PySpark of its own, everything else that of the
interpreter that runs this. Environments are kept; a second run downloads nothing. The Python is that interpreter's.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMBINATIONS = ["2.76.0/4.3.0", "2.77.0/4.1.4", "2.77.0/4.2.1", "2.77.0/4.3.0", "2.76.0/4.1.4"]
SMOKE = [
    "tests/harness/test_sdk_contract.py",
    "tests/spark/batch/test_exchange.py::test_many_shards_for_ten_elements",
    "tests/spark/batch/test_state_and_timers.py",
    "tests/spark/streaming/test_splittable.py::test_deferred_restriction_resumes_when_due",
    "tests/spark/streaming/test_steering.py::test_suspended_and_resumed_job_has_undisturbed_output",
    "tests/golden/jobs/test_resume.py::test_newest_suspended_job_resumes",
]
"""Internals of the SDK, batch, state and timers, splittable DoFns, suspend and resume, a folder of another Beam."""


def main(combinations: Sequence[str]) -> int:
    """Run the smoke set with each combination; return 0 if all passed."""
    outcomes = {}
    for combination in combinations or COMBINATIONS:
        python = environment(*combination.split("/"))
        start = time.monotonic()
        code = subprocess.run([python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *SMOKE], cwd=ROOT).returncode
        outcomes[combination] = f"{'failed' if code else 'passed'} in {time.monotonic() - start:.0f} s"
    for combination, outcome in outcomes.items():
        beam, spark = combination.split("/")
        print(f"Beam {beam}, PySpark {spark}, Python {sys.version_info[0]}.{sys.version_info[1]}: {outcome}")
    return int(any(outcome.startswith("failed") for outcome in outcomes.values()))


def environment(beam: str, spark: str) -> str:
    """Make the environment of a combination unless it exists; return its interpreter."""
    folder = ROOT / "build" / "versions" / f"beam-{beam}-spark-{spark}"
    python, made = folder / "bin" / "python", folder / "made"
    if made.exists():
        return str(python)
    venv.create(folder, clear=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run(
        [*install, "--target", str(packages), f"apache-beam=={beam}", f"pyspark=={spark}"],
        check=True,
    )
    # SUBTLE: a path file and no PYTHONPATH: the environment's own packages come first, in Spark's workers too.
    rest = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    (packages / "zz_rest.pth").write_text(rest, encoding="utf-8")
    command = folder / "bin" / "arcbeam"
    command.write_text(
        f"#!{python}\nimport sys\nfrom arcbeam.cli.main import main\nsys.exit(main())\n", encoding="utf-8"
    )
    command.chmod(0o755)
    made.touch()
    return str(python)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
