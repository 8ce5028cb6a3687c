"""Builds the source archive and the wheel, and tests the wheel as a user would use it.

    python tools/build.py [--output dist]

Both are built in isolated environments and checked by twine. The wheel must contain the package and nothing else:
neither the simulator nor tests. Its lines are printed. It is then installed into a new environment outside of the tree:
`arcbeam doctor` must pass, and a pipeline must run there, bounded and with `--streaming`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_PACKAGE = ROOT / "src" / "arcbeam"
_PIPELINE = """
import apache_beam as beam
from apache_beam.testing.util import assert_that, equal_to

with beam.Pipeline() as pipeline:
    counts = (
        pipeline
        | beam.Create(["to be", "or not to be"])
        | beam.FlatMap(str.split)
        | beam.combiners.Count.PerElement()
    )
    assert_that(counts, equal_to([("to", 2), ("be", 2), ("or", 1), ("not", 1)]))
    counts | beam.combiners.Count.Globally() | beam.Map(lambda n: open("ran", "a").write(f"{n} words\\n"))
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Build and check; return the exit code."""
    parser = argparse.ArgumentParser(description="Build the sdist and the wheel, and try the wheel.")
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="folder; what it holds is removed")
    output = parser.parse_args(arguments).output.resolve()
    shutil.rmtree(output, ignore_errors=True)
    _run(sys.executable, "-m", "build", "--outdir", output, ROOT)
    built = sorted(output.iterdir())
    _run(sys.executable, "-m", "twine", "check", "--strict", *built)
    wheel = next(path for path in built if path.suffix == ".whl")
    print(report(wheel))
    with tempfile.TemporaryDirectory(prefix="arcbeam-wheel-") as folder:
        _tried(wheel, Path(folder))
    print("the wheel works in a new environment")
    return 0


def report(wheel: Path) -> str:
    """Return the content of a wheel, for people: files, bytes, lines of Python; and the simulator's lines, not in it.

    Raises:
        SystemExit: it contains files outside of the package, or fewer modules than the package.
    """
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        strangers = [name for name in names if not name.startswith(("arcbeam/", "arcbeam-"))]
        if strangers:
            raise SystemExit(f"{wheel.name} has files outside of the package: {', '.join(strangers[:5])}")
        modules = {name for name in names if name.endswith(".py")}
        lines = sum(archive.read(name).count(b"\n") for name in modules)
    package = {f"arcbeam/{path.relative_to(_PACKAGE).as_posix()}" for path in _PACKAGE.rglob("*.py")}
    if missing := sorted(package - modules):
        raise SystemExit(f"{wheel.name} has no {', '.join(missing[:5])}")
    left_out = sum(path.read_bytes().count(b"\n") for path in (ROOT / "simulator").rglob("*.py"))
    return (
        f"{wheel.name}: {len(names)} files, {wheel.stat().st_size >> 10} KiB, {len(modules)} modules, {lines:,} lines; "
        f"left out: the simulator, {left_out:,} lines"
    )


def _tried(wheel: Path, folder: Path) -> None:
    """Install the wheel into a new environment, and run a pipeline from there."""
    _run(sys.executable, "-m", "venv", folder / "venv")
    python = folder / "venv" / "bin" / "python"
    _run(python, "-m", "pip", "--disable-pip-version-check", "install", "-q", wheel)
    arcbeam = python.with_name("arcbeam")
    script = folder / "pipeline.py"
    script.write_text(_PIPELINE, encoding="utf-8")
    # Neither this tree nor another environment's settings.
    kept = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV", "SPARK_HOME")
    }
    environment = kept | {"PYSPARK_PYTHON": str(python)}
    _run(arcbeam, "doctor", cwd=folder, env=environment)
    for options in ([], ["--streaming"]):
        _run(arcbeam, "run", script, *options, cwd=folder, env=environment)
    ran = (folder / "ran").read_text(encoding="utf-8").splitlines()
    if ran != ["4 words"] * 2:
        raise SystemExit(f"the pipeline wrote {ran}, wanted '4 words' from each of two runs")


def _run(*command: object, cwd: Path | None = None, env: dict[str, str] | None = None) -> None:
    words = [str(word) for word in command]
    # SUBTLE: through a pipe, because Spark's JVM outlives its program for a moment. The pipe ends when both have ended.
    ended = subprocess.run(words, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(ended.stdout, end="", flush=True)
    if ended.returncode:
        raise SystemExit(f"failed with exit code {ended.returncode}: {' '.join(words)}")


if __name__ == "__main__":
    sys.exit(main())
