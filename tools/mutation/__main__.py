"""Tries a sample of mutants of each package: small mistakes, of which the tests beside the module must find 90 %.

    python -m tools.mutation [--seed SEED] [--jobs N] [PACKAGE ...]

`tools.mutation.sample` chooses 40 mutants a package. Each is planted in a copy of the tree, and the package's tests run
until one fails: first those that mirror the module, then those of its folder, then all others that are not `long`.

Some mutants change nothing that may be observed. Each is argued in `tests/mutants/PACKAGE.toml`:

    [[equivalent]]
    file = "src/arcbeam/…py"
    old = "…"               # in the file exactly once
    new = "…"               # the text is the mutant's then
    why = "…"

Results are kept in `build/mutants`: a mutant that was found is not tried again until its module changes, a survivor not
until a test of its package changes. The exit code is 0 if 90 % of the mutants of each package are found, without
equivalent ones, and if each argued mutant is in the sample.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import py_compile
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue

from tools import plant
from tools.mutation import trial
from tools.mutation.equivalents import ROOT, SEED, Equivalent, equivalents, text_of
from tools.mutation.sample import Mutant, modules, sample
from tools.mutation.trial import Clean, Verdict

SOURCES = ROOT / "src" / "arcbeam"
TESTS = ROOT / "tests"
RESULTS = ROOT / "build" / "mutants"
SIZE = 40
SHARE_MIN = 0.9


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the mutants of the packages named, or of all; return the exit code."""
    known = sorted(path.parent.name for path in SOURCES.glob("*/__init__.py"))
    parser = argparse.ArgumentParser(description="Try mutants and check that tests find them.")
    parser.add_argument("packages", nargs="*", metavar="PACKAGE")
    parser.add_argument("--seed", default=SEED, help="of the sample (%(default)s)")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="copies tested concurrently")
    given = parser.parse_args(arguments)
    if unknown := set(given.packages) - set(known):
        parser.error(f"unknown packages: {', '.join(sorted(unknown))}")
    argued = equivalents()
    succeeded = True
    lines = ["| package | mutants | found | equivalent | survived | share found |", "|---|---|---|---|---|---|"]
    survivors: list[str] = []
    for package in given.packages or known:
        mutants = sample(modules(SOURCES / package, ROOT), given.seed, SIZE)
        equal = {mutant.id: each for each in argued for mutant in mutants if _is(each, mutant)}
        tried = [mutant for mutant in mutants if mutant.id not in equal]
        verdicts = _verdicts(package, tried, given.jobs)
        survived = [mutant for mutant in tried if not verdicts[mutant.id].found]
        share = 1 - len(survived) / len(tried) if tried else 1.0
        row = (len(mutants), len(tried) - len(survived), len(equal), len(survived), f"{share:.0%}")
        lines.append(f"| {package} | {' | '.join(map(str, row))} |")
        print(lines[-1], flush=True)
        survivors += map(str, survived)
        succeeded &= share >= SHARE_MIN
        if given.seed == SEED:
            stale = [each for each in argued if each.package == package and each not in equal.values()]
            survivors += [f"tests/mutants/{package}.toml: no mutant of the sample: {each.new!r}" for each in stale]
            succeeded &= not stale
    report = "\n".join([*lines, "", f"Seed {given.seed}.", "", *survivors])
    (RESULTS / "report.txt").write_text(report + "\n", encoding="utf-8")
    print(f"\n{report}")
    return 0 if succeeded else 1


def _is(each: Equivalent, mutant: Mutant) -> bool:
    return each.file == mutant.file and text_of(each) == mutant.text


def _verdicts(package: str, mutants: Sequence[Mutant], jobs: int) -> Mapping[str, Verdict]:
    """Return the verdict on each mutant by its id; those that are known are not tried again."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    kept = RESULTS / f"{package}.jsonl"
    tests = _digest(trial.folders(package, TESTS))
    known: dict[str, Verdict] = {}
    for line in kept.read_text(encoding="utf-8").splitlines() if kept.exists() else ():
        entry = json.loads(line)
        if entry["found"] or entry["tests"] == tests:
            known[entry["id"]] = Verdict(entry["found"], entry["by"])
    waiting = [mutant for mutant in mutants if mutant.id not in known]
    with tempfile.TemporaryDirectory(prefix="arcbeam-mutants-") as folder, kept.open("a", encoding="utf-8") as results:
        trees: SimpleQueue[Path] = SimpleQueue()
        for number in range(min(jobs, len(waiting))):
            trees.put(_copied(Path(folder) / str(number)))

        def tried(mutant: Mutant) -> tuple[Mutant, Verdict]:
            tree = trees.get()
            path = tree / mutant.file
            correct = path.read_text(encoding="utf-8")
            try:
                path.write_text(mutant.text, encoding="utf-8")
                return mutant, trial.verdict(tree, mutant.file, package, unmutated)
            finally:
                path.write_text(correct, encoding="utf-8")
                trees.put(tree)

        if waiting:
            tree = trees.get()
            unmutated = _clean(package, tree)
            trees.put(tree)
        with ThreadPoolExecutor(max(1, jobs)) as pool:
            for future in as_completed([pool.submit(tried, mutant) for mutant in waiting]):
                mutant, verdict = future.result()
                known[mutant.id] = verdict
                entry = {"id": mutant.id, "found": verdict.found, "by": verdict.by, "tests": tests}
                entry |= {"file": mutant.file, "line": mutant.line, "change": mutant.change}
                results.write(json.dumps(entry) + "\n")
                results.flush()
                print(f"{'found' if verdict.found else 'NOT'} {mutant.file}:{mutant.line} {verdict.by}", flush=True)
    return known


def _copied(folder: Path) -> Path:
    """Return a copy of the tree, compiled so that Python compares the digest of a source, not its time."""
    plant.copied(folder)
    for path in (folder / "src").rglob("*.py"):
        py_compile.compile(str(path), invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)
    return folder


def _clean(package: str, tree: Path) -> Clean:
    """Run the tests of a package without a mutant; not again without a change."""
    kept = RESULTS / f"{package}.clean.json"
    digest = _digest([SOURCES, *trial.folders(package, TESTS)])
    if kept.exists() and (known := json.loads(kept.read_text(encoding="utf-8")))["of"] == digest:
        return Clean(known["seconds"], tuple(known["failing"]))
    clean = trial.clean(tree, trial.folders(package, tree / "tests"))
    for name in clean.failing:
        print(f"fails without a mutant, and is left out: {name}", flush=True)
    record = {"of": digest, "seconds": clean.seconds, "failing": clean.failing}
    kept.write_text(json.dumps(record), encoding="utf-8")
    return clean


def _digest(folders: Iterable[Path]) -> str:
    """Return a digest of the modules below folders."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    sys.exit(main())
