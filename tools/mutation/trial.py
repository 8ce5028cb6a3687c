"""Runs the tests beside a module, in a copy of the tree, in a forked process that has imported pytest and Beam already.

Cosmic Ray starts a command for each mutant instead; half of its time would be the import of libraries.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import resource
import signal
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_PRELOADED = ["pytest", "hypothesis", "apache_beam", "pandas", "pyarrow", "tools.mutation.sample"]
"""Libraries, which no mutant changes. No module of arcbeam: a mutant must be imported after it was planted."""
_ELSEWHERE = {"secrets": ("privacy",)}
"""Packages whose tests have another name."""
_SECONDS = 60
_TIMES_CLEAN = 4
"""Tests may take 60 seconds, and four times what they take without a mutant, see `run`."""
_BYTES = 6 << 30
"""A mutant that fills memory ends here."""
_PASSED = (0, 5)
"""pytest's exit codes: all passed; nothing to run."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What tests say of a mutant.

    Attributes:
        found: whether one failed.
        by: the first test that failed, or what ended the run.
    """

    found: bool
    by: str = ""


@dataclass(frozen=True, slots=True)
class Clean:
    """A run of all tests of a package without a mutant.

    Attributes:
        seconds: what each test file takes.
        failing: tests that fail, and so find nothing: their machine is too slow, or lacks something.
    """

    seconds: Mapping[str, float]
    failing: tuple[str, ...] = ()


def folders(package: str, tests: Path) -> tuple[Path, ...]:
    """Return the folders with the tests of a package."""
    return tuple(tests / name for name in _ELSEWHERE.get(package, (package,)))


def stages(file: str, package: str, seconds: Mapping[str, float]) -> Iterator[tuple[str, ...]]:
    """Yield the test files of a module: first its mirror, then those of its folder, then all others, quick ones first.

    Args:
        file: the module's path, `src/arcbeam/…`.
        package: its package.
        seconds: what each test file of the package takes.
    """
    path = Path(file)
    beside = Path("tests", *path.parent.parts[2:])
    mirrored = re.compile(rf"test_{re.escape(path.stem.lstrip('_'))}(_\w+)?\.py")
    rest = sorted(seconds, key=lambda name: (seconds[name], name))
    for belongs in (
        lambda test: test.parent == beside and bool(mirrored.fullmatch(test.name)),
        lambda test: test.parent == beside and beside != Path("tests", package),
        lambda test: True,
    ):
        if chosen := tuple(name for name in rest if belongs(Path(name))):
            yield chosen
            rest = [name for name in rest if name not in chosen]


def clean(tree: Path, tests: Iterable[Path]) -> Clean:
    """Run all tests of a package without a mutant."""
    report = tree.parent / f"{tree.name}.xml"
    names = [path.relative_to(tree).as_posix() for path in tests]
    run(tree, [f"--junitxml={report}", "-o", "junit_family=xunit1", *names], seconds=None)
    seconds: dict[str, float] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        if (name := case.get("file")) is not None:
            seconds[name] = seconds.get(name, 0.0) + float(case.get("time", 0))
    return Clean(seconds, _failed(tree))


def verdict(tree: Path, file: str, package: str, tests: Clean) -> Verdict:
    """Run the tests of a module until one fails."""
    without = [f"--deselect={name}" for name in tests.failing]
    for names in stages(file, package, tests.seconds):
        limit = _SECONDS + _TIMES_CLEAN * sum(tests.seconds[name] for name in names)
        if (found := run(tree, ["-x", *without, *names], seconds=limit)).found:
            return found
    return Verdict(False)


def run(tree: Path, arguments: Sequence[str], *, seconds: float | None) -> Verdict:
    """Run pytest in a tree until it ends or has had so much time, without what it waited for a processor."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    process = context.Process(target=_pytest, args=(tree, list(arguments), _log(tree)))
    process.start()
    _await(process, seconds)
    code = process.exitcode
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid or 0, signal.SIGKILL)  # also what the tests have started
    process.kill()  # on a busy machine it perhaps has no group of its own yet
    process.join()
    if code is None:
        return Verdict(True, f"no end within {seconds:.0f} s")
    return Verdict(code not in _PASSED, next(iter(_failed(tree)), f"pytest's exit code {code}"))


def _await(process: multiprocessing.process.BaseProcess, seconds: float | None) -> None:
    """Wait until pytest ends, or has had that much time; the time in which it waited for a processor does not count."""
    begin = time.monotonic()
    left = seconds
    while process.exitcode is None and (left is None or left > 0):
        process.join(left)
        if seconds is not None:
            left = seconds + queued(process.pid or 0) - (time.monotonic() - begin)


def queued(session: int, proc: Path = Path("/proc")) -> float:
    """Return for how many seconds a session's threads have waited for a processor: the one that waited longest.

    SUBTLE: on a busy machine tests without a mistake may take ten times as long, too.
    """
    longest = 0.0
    for process in proc.glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            if int((process / "stat").read_text().rpartition(")")[2].split()[3]) == session:
                waited = (int(each.read_text().split()[1]) / 1e9 for each in process.glob("task/*/schedstat"))
                longest = max(longest, max(waited, default=0.0))
    return longest


def _log(tree: Path) -> Path:
    return tree.parent / f"{tree.name}.log"


def _failed(tree: Path) -> tuple[str, ...]:
    """Return the tests that failed in the last run."""
    text = _log(tree).read_text(encoding="utf-8", errors="replace")
    return tuple(re.findall(r"^(?:FAILED|ERROR) ([^\[\n]*?(?:\[.*?\])?)(?: - .*)?$", text, re.MULTILINE))


def _pytest(tree: Path, arguments: list[str], log: Path) -> None:
    os.setsid()
    # A shell's background jobs, and their children, ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    resource.setrlimit(resource.RLIMIT_DATA, (_BYTES, _BYTES))
    os.chdir(tree)
    paths = [str(tree / "src"), str(tree)]
    sys.path[:] = [*paths, *(path for path in sys.path if Path(path or ".").resolve() not in _OWN)]
    temporary = tree.parent / f"{tree.name}.tmp"
    temporary.mkdir(exist_ok=True)
    os.environ |= {"PYTHONPATH": os.pathsep.join(paths), "TMPDIR": str(temporary)}
    for name in [name for name in sys.modules if name.partition(".")[0] in ("arcbeam", "tests", "tools", "simulator")]:
        del sys.modules[name]
    import pytest

    code = pytest.main(["-q", "-m", "not long", "-p", "no:cacheprovider", *arguments])
    sys.stdout.flush()
    os._exit(int(code))  # not waiting for threads of a mutant


_OWN = (Path(__file__).resolve().parents[2], Path(__file__).resolve().parents[2] / "src")
"""Where this tree's own modules are, which the copy has as well."""
