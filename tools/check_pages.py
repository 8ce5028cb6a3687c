"""Checks that names in the developers' pages exist: modules, their members, classes, paths, options, dependencies.

    python tools/check_pages.py

Checks names in backticks in `docs/developers/` and CONTRIBUTING.md:

- `engine.coordinator.budget`: a module below src/arcbeam, or `simulator`, `tests`; a member of one may follow.
- `.budget`: in the package of the last module before it in the section.
- `budget.Pace`: a member of any module of that name. `Pace`, `Pace.after`: a class or value, and its member.
- `tests/golden`: a path. `pyproject.toml`: a file of that name.
- `--shards`: an option that the sources have.

Fenced blocks are not checked. A name of another project is in `FOREIGN`. Every violation is printed as
`path:line: what`, and the exit code is 1 if there is any.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

FOREIGN = frozenset(
    {
        "AfterEach",
        "AsSingleton",
        "BoundedSource",
        "BundleProcessor",
        "CombineFn",
        "Create",
        "EmptySideInput",
        "GeneralTriggerDriver",
        "GroupByKey",
        "ReadAllFromText",
        "RowCoder",
        "Self",
        "StopIteration",
        "StrEnum",
        "TimestampedValue",
        "WriteImpl",
        "WriteToParquet",
        "WriteToText",
        "__main__",
    }
)
"""First parts of names of Beam, Spark and Python in the pages."""
FOREIGN_PACKAGES = frozenset({"beam", "numpy", "os", "pytest", "spark", "time"})
"""`spark.speculation` is a setting of Spark: with these first parts, unknown names are accepted."""

_SPAN = re.compile(r"`([^`\n]+)`")
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_DOTTED = re.compile(r"\.?[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_CLASS = re.compile(r"[A-Z][a-z]\w*[A-Z]\w*|[A-Z][a-z]+\w*")
_FILE = re.compile(r"[\w-]+\.(py|toml|md|yml|yaml|json|sh|svg)")
_OPTION = re.compile(r"(--[a-z][a-z_-]*)(=\S+)?")
_FOLDERS = (".ci", "benchmarks", "docs", "examples", "simulator", "src", "tests", "tools")


@dataclass(frozen=True)
class Tree:
    """The names in a work tree.

    Attributes:
        root: its folder.
    """

    root: Path

    @cached_property
    def modules(self) -> dict[str, Path]:
        """Packages and modules by dotted name; those below src/arcbeam without `arcbeam`."""
        found: dict[str, Path] = {}
        for base, prefix in (
            (self.root / "src" / "arcbeam", ""),
            *((self.root / n, n) for n in ("simulator", "tests")),
        ):
            for path in base.rglob("*.py"):
                parts = [*filter(None, [prefix]), *path.relative_to(base).with_suffix("").parts]
                if parts[-1] == "__init__":
                    parts.pop()
                for n in range(1, len(parts)):
                    found.setdefault(".".join(parts[:n]), base)
                if parts:
                    found[".".join(parts)] = path
        return found

    @cached_property
    def stems(self) -> dict[str, list[str]]:
        """Modules by their last name."""
        found: dict[str, list[str]] = defaultdict(list)
        for name in self.modules:
            found[name.rpartition(".")[2]].append(name)
        return found

    @cached_property
    def text(self) -> str:
        """All sources, for names that may be anywhere."""
        folders = ("src", "simulator", "tools", "benchmarks")
        files = [path for folder in folders for path in sorted((self.root / folder).rglob("*.py"))]
        return "\n".join(path.read_text(encoding="utf-8") for path in files)

    @cached_property
    def files(self) -> frozenset[str]:
        """Names of all files at the top and below the folders that pages mention."""
        tops = [path for path in self.root.iterdir() if path.is_file()]
        below = [path for folder in _FOLDERS for path in (self.root / folder).rglob("*") if path.is_file()]
        return frozenset(path.name for path in (*tops, *below))

    def has_member(self, module: str, member: str) -> bool:
        """Return whether a module defines a name, at its top or in a class."""
        path = self.modules[module]
        if not path.is_file():
            return False
        pattern = rf"(\b(class|def) {member}\b|^\s*{member}\s*[:=]|\bimport .*\b{member}\b)"
        return re.search(pattern, path.read_text(encoding="utf-8"), re.MULTILINE) is not None

    def defines(self, name: str) -> bool:
        """Return whether any source defines a class, function or value of that name."""
        return re.search(rf"(\b(class|def) {name}\b|^\s*{name}\s*(:.*)?=)", self.text, re.MULTILINE) is not None


def resolved(tree: Tree, name: str) -> str | None:
    """Return the module of a dotted name, which may be the module or a member; None if there is none."""
    parts = name.split(".")
    for n in range(len(parts), 0, -1):
        module = ".".join(parts[:n])
        if module in tree.modules:
            rest = parts[n:]
            return module if all(tree.has_member(module, each) for each in rest) else None
    return None


def wrong(tree: Tree, span: str, before: str) -> tuple[str, str]:
    """Return what is wrong with a name (empty: nothing), and the module that it means (empty: none).

    Args:
        tree: that must contain it.
        span: the text in the backticks.
        before: the last module before it in the section.
    """
    first = span.split()[0].rstrip(",;:")
    if first.partition("/")[0] in _FOLDERS and "/" in first and not re.search(r"[<>*…]", first):
        found = (tree.root / first.partition("::")[0]).exists()
        return ("" if found else f"no such path: {first}"), ""
    if option := _OPTION.fullmatch(first):
        name = option[1]
        spelt = re.sub("(?<=[a-z])[_-]", "[_-]", name)
        known = re.search(rf"{spelt}(?![\w-])", tree.text)
        return ("" if known else f"no such option: {name}"), ""
    if span != first or not _DOTTED.fullmatch(span):
        return "", ""
    if _FILE.fullmatch(span):
        return ("" if span in tree.files else f"no such file: {span}"), ""
    if span.startswith("."):
        package = before.rpartition(".")[0]
        full = f"{package}{span}"
        return (
            ("", full)
            if package and resolved(tree, full)
            else (f"no module '{span}' in the package of '{before}'", before)
        )
    name = span.removeprefix("arcbeam.")
    head, _, rest = name.partition(".")
    if head in FOREIGN:
        return "", before
    if _CLASS.fullmatch(head):
        missing = [each for each in name.split(".") if not tree.defines(each)]
        return (f"no such name: {missing[0]}" if missing else ""), before
    if not rest:
        return "", name if name in tree.modules else before
    if module := resolved(tree, name):
        return "", module
    stems = tree.stems.get(head, [])
    if any(tree.has_member(stem, rest.split(".")[0]) for stem in stems):
        return "", before
    if head in FOREIGN_PACKAGES and (head not in tree.modules or rest.split(".")[0] not in _rooms(tree, head)):
        return "", before
    return f"no such module or member: {span}", before


def _rooms(tree: Tree, package: str) -> set[str]:
    return {name.split(".")[1] for name in tree.modules if name.startswith(f"{package}.")}


def violations(tree: Tree, text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, what) of every name in a page that does not exist."""
    bare = _FENCE.sub(lambda block: "\n" * block[0].count("\n"), text)
    before = ""
    for number, line in enumerate(bare.splitlines(), 1):
        if line.startswith("#"):
            before = ""
        for span in _SPAN.findall(line):
            what, before = wrong(tree, span, before)
            if what:
                yield number, what


def dependencies(root: Path) -> Iterator[str]:
    """Return the dependencies in pyproject.toml."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for each in (*project["dependencies"], *(e for extra in project["optional-dependencies"].values() for e in extra)):
        name = re.match(r"[\w.-]+", each)
        if name and name[0] != project["name"]:
            yield name[0]


def main() -> int:
    """Check all pages; return 1 if a name does not exist."""
    tree, found = Tree(ROOT), []
    pages = [path for path in sorted((ROOT / "docs" / "developers").rglob("*.md")) if path.name != "packages.md"]
    for path in (*pages, ROOT / "CONTRIBUTING.md"):
        for line, what in violations(tree, path.read_text(encoding="utf-8")):
            found.append(f"{path.relative_to(ROOT)}:{line}: {what}")
    page = ROOT / "docs" / "developers" / "dependencies.md"
    reasons = page.read_text(encoding="utf-8").lower()
    for name in dependencies(ROOT):
        if name.lower().removesuffix("-binary") not in reasons:
            found.append(f"{page.relative_to(ROOT)}:1: no reason for {name}")
    print("\n".join(found) or "all names in the developers' pages exist")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
