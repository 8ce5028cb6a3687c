"""Plants mistakes in a copy of the tree, and checks that tests find each of them.

    python tools/plant.py [--class CLASS] [--jobs N] [NAME ...]

A mistake is a table in `tests/planted/*.toml`:

    [[mistake]]
    name = "timer-fires-twice"          # unique
    class = "same thing again"          # one of CLASSES
    file = "src/arcbeam/engine/…py"
    old = "if moment < watermark:"      # in the file exactly once
    new = "if moment <= watermark:"
    tests = ["tests/engine/state/test_timers.py"]   # pytest arguments; "long" ones are run, too
    # found_by_nothing = "why no test can find it"  # instead of tests

The copy contains the files that git tracks, as they are in the work tree. First all tests run without mistakes and must
pass. Then each mistake's tests run with it and must fail. A run that collects no test, cannot start or exceeds its time
finds nothing. The exit code is 0 if every mistake is found. `make test` checks that the tables fit the code.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLES = ROOT / "tests" / "planted"
CLASSES = (
    "same thing again",
    "caches and identity",
    "aliasing",
    "second paths at scale",
    "publishing and power loss",
    "side inputs",
    "jobs",
    "leaks and busy loops",
    "exact boundaries and types",
    "rescaling",
    "order between producers",
    "retries",
    "sets and prefixes",
    "two reads",
)
_SECONDS = 900
"""Time limit for the tests of one mistake. All tests together, without a mistake, have this time for each test."""
# pytest's exit codes.
_PASSED, _FAILED = 0, 1


@dataclass(frozen=True, slots=True)
class Mistake:
    """A mistake that a developer might make.

    Attributes:
        name: unique.
        kind: one of `CLASSES`.
        file: path in the tree.
        old: text that occurs once in the file.
        new: its replacement.
        tests: pytest arguments of the tests that find it.
        found_by_nothing: why no test finds it; "" if `tests` do.
    """

    name: str
    kind: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...] = ()
    found_by_nothing: str = ""


def mistakes(tables: Path = TABLES) -> list[Mistake]:
    """Read all tables, in the order of their names.

    Raises:
        ValueError: a table is malformed, or a name occurs twice.
    """
    found: dict[str, Mistake] = {}
    for path in sorted(tables.glob("*.toml")):
        for entry in tomllib.loads(path.read_text(encoding="utf-8")).get("mistake", []):
            made = _made(path.name, dict(entry))
            if made.name in found:
                raise ValueError(f"{path.name}: the name {made.name!r} is taken")
            found[made.name] = made
    return list(found.values())


def _made(table: str, entry: dict[str, object]) -> Mistake:
    entry["kind"] = entry.pop("class", "")
    entry["tests"] = tuple(entry.get("tests", ()))  # type: ignore[arg-type]
    try:
        made = Mistake(**entry)  # type: ignore[arg-type]
    except TypeError as e:
        raise ValueError(f"{table}: {entry.get('name', 'a mistake without a name')}: {e}") from e
    if made.kind not in CLASSES:
        raise ValueError(f"{table}: {made.name}: class {made.kind!r} is not one of {', '.join(CLASSES)}")
    if bool(made.tests) == bool(made.found_by_nothing):
        raise ValueError(f"{table}: {made.name}: give either tests or found_by_nothing")
    if made.old == made.new:
        raise ValueError(f"{table}: {made.name}: old and new are the same text")
    return made


def planted(text: str, mistake: Mistake) -> str:
    """Return a file's text with the mistake.

    Raises:
        ValueError: the text to replace is not there exactly once.
    """
    if (times := text.count(mistake.old)) != 1:
        raise ValueError(f"{mistake.name}: {mistake.file} has the text to replace {times} times, wanted once")
    return text.replace(mistake.old, mistake.new)


def main(arguments: Sequence[str] | None = None) -> int:
    """Plant the mistakes named, or all; return the exit code."""
    parser = argparse.ArgumentParser(description="Plant mistakes and check that tests find them.")
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--class", dest="kind", choices=CLASSES)
    parser.add_argument("--jobs", type=int, default=1, help="copies that are tested concurrently")
    given = parser.parse_args(arguments)
    known = mistakes()
    if unknown := set(given.names) - {each.name for each in known}:
        parser.error(f"unknown mistakes: {', '.join(sorted(unknown))}")
    wanted = [
        each
        for each in known
        if (not given.names or each.name in given.names) and (not given.kind or each.kind == given.kind)
    ]
    missed = _tried([each for each in wanted if each.tests], given.jobs)
    for each in wanted:
        if each.found_by_nothing:
            print(f"nothing   {each.name}: {each.found_by_nothing}")
    print(f"{len(wanted)} mistakes, {len(missed)} not found" + "".join(f"\n  {name}" for name in missed))
    return 1 if missed else 0


def _tried(wanted: Sequence[Mistake], jobs: int) -> list[str]:
    with tempfile.TemporaryDirectory(prefix="arcbeam-planted-") as folder:
        clean = copied(Path(folder) / "clean")
        tests = sorted({test for each in wanted for test in each.tests})
        if tests and (code := _run(clean, tests, seconds=len(tests) * _SECONDS, show=True)) != _PASSED:
            print(f"the tests fail without any mistake: pytest ended with {code}", flush=True)
            return [each.name for each in wanted]

        def found(each: Mistake) -> bool:
            tree = copied(Path(folder) / each.name)
            path = tree / each.file
            path.write_text(planted(path.read_text(encoding="utf-8"), each), encoding="utf-8")
            code = _run(tree, each.tests)
            shutil.rmtree(tree, ignore_errors=True)
            print(f"{'found' if code == _FAILED else f'NOT ({code})':9} {each.name}", flush=True)
            return code == _FAILED

        with ThreadPoolExecutor(jobs) as pool:
            return [each.name for each, was in zip(wanted, pool.map(found, wanted), strict=True) if not was]


def copied(folder: Path) -> Path:
    """Copy the files that git tracks, and new ones that it does not ignore; return the folder."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in _existing(listed.stdout.decode().split("\0")):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    return folder


def _existing(names: Iterable[str]) -> Iterable[str]:
    return (name for name in names if name and (ROOT / name).is_file())


def _run(tree: Path, tests: Sequence[str], *, seconds: float = _SECONDS, show: bool = False) -> int:
    """Run tests in a tree and return pytest's exit code, or -1 if they are out of time; `show` prints its report."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    # SUBTLE: Python recognizes a changed source by its time in seconds and its size; a mistake may change neither.
    environment |= {"PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree}", "PYTHONDONTWRITEBYTECODE": "1"}
    # One failure is enough. A mistake may let each test run until it gives up, all together longer than the time.
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    out = None if show else subprocess.DEVNULL
    try:
        ended = subprocess.run(command, cwd=tree, env=environment, timeout=seconds, stdout=out, stderr=out)
    except subprocess.TimeoutExpired:
        return -1
    return ended.returncode


if __name__ == "__main__":
    sys.exit(main())
