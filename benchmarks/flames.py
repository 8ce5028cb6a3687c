"""Flame graphs of a worker's code: map, group and count, with all optimizations off ("before") and on ("after").

    python benchmarks/flames.py

Writes docs/flames/<work>-<before or after>.svg: self-contained pictures. py-spy takes the samples, and also names the
SDK's compiled functions. It reads another process, which the system may allow to root only. The pictures are drawn
here: py-spy's own contain everything that runs before and beside the work, and are several times as large.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.flame import svg, tree

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "flames"
WORKS = ("map", "group", "count")
OPTIMIZATIONS = ("value_chains", "loops", "record_lists", "folds", "batches", "bulk_values")
"""Fields of `arcbeam.harness.operations.taskcontext.TaskSettings` that are off in "before"."""
BELOW = "BoundedStage.run"
"""What a worker does with a task's rows."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks/flames.py", description=__doc__)
    parser.add_argument("--work", choices=WORKS, help="only this work")
    parser.add_argument("--elements", type=int, default=4_000_000, help="elements of each run (default 4 M)")
    parser.add_argument("--rate", type=int, default=100, help="samples per second (default 100)")
    options = parser.parse_args()
    spy = shutil.which("py-spy", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    if spy is None:
        parser.error("py-spy is not installed: pip install py-spy")
    FOLDER.mkdir(exist_ok=True)
    for work in [options.work] if options.work else WORKS:
        for when, off in (("before", OPTIMIZATIONS), ("after", ())):
            path = FOLDER / f"{work}-{when}.svg"
            with tempfile.TemporaryDirectory() as folder:
                raw = Path(folder) / "stacks"
                _record(spy, raw, work, options.elements, options.rate, off)
                top = tree(raw.read_text(encoding="utf-8").splitlines(), BELOW)
            path.write_text(svg(f"{work}, {when}", top), encoding="utf-8")
            seconds, size = top.samples / options.rate, path.stat().st_size
            print(f"{path.relative_to(ROOT)}: {seconds:.1f} s of work, {size // 1000} kB", flush=True)
    return 0


def _record(spy: str, path: Path, work: str, elements: int, rate: int, off: tuple[str, ...]) -> None:
    """Record one flame graph, without what the process does before it is ready."""
    paths = [ROOT / "src", ROOT, ROOT / "benchmarks", *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))}
    command = [sys.executable, "-m", "bench.flamed", work, str(elements), *off]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        if worker.stdout.readline().strip() != "ready":
            raise RuntimeError(f"{work} did not run")
        record = [spy, "record", "--pid", str(worker.pid), "--rate", str(rate), "--output", str(path)]
        outputs = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        # Native frames, because most of the SDK's operations are compiled; without them their time has no name.
        with subprocess.Popen([*record, "--format", "raw", "--function", "--native", "--gil"], **outputs) as sampler:
            assert sampler.stdout is not None
            reported = sampler.stdout.readline()  # reports that it has begun, or the error
            worker.stdin.write("go\n")
            worker.stdin.close()
            reported += sampler.stdout.read()
    if worker.returncode or not path.exists():
        raise RuntimeError(f"{work}: {reported}")


if __name__ == "__main__":
    sys.exit(main())
