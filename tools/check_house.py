"""The rules of the house that no other tool knows: sizes, circles, docstrings, and who may import what from outside.

Sizes hold for the tests and the benchmarks, too.

import-linter watches the layers; this looks below the names of external packages (Beam's protos by kind), for circles
of modules inside of a room, and for rooms that are too full. Every violation is printed as `path:line: what`, and the
exit code is 1 if there is any.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools import check_sizes

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "arcbeam"
BESIDE = tuple(ROOT / name for name in ("simulator", "tests", "benchmarks", "examples", "tools"))
"""Folders that are as readable as the package, though they may import what they like."""
MAX_LINES = 500
MAX_MODULES = 16
"""In one folder, `__init__.py` not counted."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Names that hold `target` (one or several adjacent parts of a dotted name) are only for `allowed` parts."""

    target: str
    allowed: tuple[str, ...]
    why: str


RULES = (
    Rule("pyspark", ("spark",), "only spark imports pyspark"),
    Rule("py4j", (), "nothing reaches into the JVM"),
    Rule("beam_fn_api_pb2", ("harness",), "the Fn API is the harness's"),
    Rule("beam_fn_api_pb2_grpc", ("harness",), "the Fn API is the harness's"),
    Rule("beam_job_api_pb2", ("jobs", "runner"), "the Job API is the job service's"),
    Rule("beam_job_api_pb2_grpc", ("jobs", "runner"), "the Job API is the job service's"),
    Rule("beam_artifact_api_pb2", ("jobs", "runner"), "artifacts are the job service's"),
    Rule("beam_artifact_api_pb2_grpc", ("jobs", "runner"), "artifacts are the job service's"),
    Rule(
        "beam_runner_api_pb2",
        ("translate", "harness", "jobs", "runner"),
        "pipeline protos are not for everybody",
    ),
    Rule("fn_api_runner.translations", ("translate", "harness"), "the SDK's graph phases are translate's"),
    Rule("arcbeam.testing", ("testing",), "production code never imports testing"),
)

BEAM_FREE = ("model", "store", "engine", "streaming", "errors")
"""Parts that import nothing of Beam at all."""

OPTIONS_ONLY = "apache_beam.options"
"""All that arcbeam.options may import of Beam."""


def imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything a module imports; `from a import b` gives a.b, so that submodules are seen."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"


def inside(name: str, target: str) -> bool:
    """Whether a dotted name is `target` or below it."""
    return name == target or name.startswith(target + ".")


def oversized(text: str) -> Iterator[tuple[int, str]]:
    """(line, what) if a module is too long."""
    lines = text.count("\n")
    if lines > MAX_LINES:
        yield lines, f"{lines} lines; {MAX_LINES} at most: split it by what it knows"


def violations(path: Path, text: str) -> Iterator[tuple[int, str]]:
    """(line, what) of every broken rule in one module, whose path is relative to the package."""
    part = path.parts[0].removesuffix(".py")
    tree = ast.parse(text, str(path))
    yield from oversized(text)
    if not ast.get_docstring(tree):
        yield 1, "no module docstring: say what it owns and what it must not know"
    if path.name == "__init__.py":
        for node in tree.body:
            # A package's face: imports, __all__, and a lazy __getattr__ that imports; nothing that does something.
            if isinstance(node, ast.ClassDef):
                yield node.lineno, "__init__.py only re-exports"
    for line, name in imports(tree):
        for rule in RULES:
            if f".{rule.target}." in f".{name}." and part not in rule.allowed:
                yield line, f"imports {name}: {rule.why}"
        if inside(name, "apache_beam"):
            if part in BEAM_FREE:
                yield line, f"imports {name}: {part} knows nothing of Beam"
            if part == "options" and not inside(name, OPTIONS_ONLY):
                yield line, f"imports {name}: options knows only {OPTIONS_ONLY}"
        if part == "errors" and inside(name, "arcbeam"):
            yield line, f"imports {name}: errors is at the bottom"


def imported(tree: ast.Module) -> Iterator[str]:
    """What a module imports, in functions and for types, too."""
    nodes: list[ast.AST] = [tree]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        nodes.extend(ast.iter_child_nodes(node))


def circles(modules: dict[str, str]) -> Iterator[list[str]]:
    """Groups of modules that import each other, each sorted.

    Args:
        modules: the sources by dotted name; a package has its `__init__`'s.
    """
    graph: dict[str, set[str]] = {}
    for name, source in modules.items():
        found = imported(ast.parse(source))
        graph[name] = {known for dotted in found if (known := nearest(dotted, modules)) and known != name}
    reach = {name: reachable(graph, name) for name in graph}
    seen: set[str] = set()
    for name in sorted(graph):
        circle = [other for other in sorted(reach[name]) if name in reach[other]]
        if circle and name not in seen:
            seen.update(circle)
            yield circle


def nearest(dotted: str, modules: dict[str, str]) -> str | None:
    """The module that an imported name is, or is in."""
    if dotted in modules:
        return dotted
    parent = dotted.rpartition(".")[0]
    return parent if parent in modules else None


def reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    """All that can be reached from a module by one import or more."""
    found: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting.extend(graph[name])
    return found


def crowded(folders: Iterable[Path]) -> Iterator[tuple[Path, str]]:
    """Folders with too many modules."""
    for folder in folders:
        count = len([file for file in folder.glob("*.py") if file.name != "__init__.py"])
        if count > MAX_MODULES:
            yield folder, f"{count} modules; {MAX_MODULES} at most: give them rooms"


def folders(root: Path) -> list[Path]:
    """A folder and all below it that may have modules."""
    return [path for path in [root, *sorted(root.rglob("*"))] if path.is_dir() and path.name != "__pycache__"]


def main() -> int:
    """Checks every module; 1 if any breaks a rule."""
    broken = 0
    sources = {
        ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): file.read_text()
        for file in PACKAGE.rglob("*.py")
    }
    for circle in circles(sources):
        print(f"src: a circle of imports: {', '.join(circle)}")
        broken += 1
    for folder, what in crowded(folder for root in (PACKAGE, *BESIDE) for folder in folders(root)):
        print(f"{folder.relative_to(ROOT)}: {what}")
        broken += 1
    for file in sorted(PACKAGE.rglob("*.py")):
        for line, what in violations(file.relative_to(PACKAGE), file.read_text()):
            print(f"{file.relative_to(ROOT)}:{line}: {what}")
            broken += 1
    for file in sorted(file for root in BESIDE for file in root.rglob("*.py")):
        for line, what in oversized(file.read_text()):
            print(f"{file.relative_to(ROOT)}:{line}: {what}")
            broken += 1
    for file, line, what in check_sizes.check(PACKAGE):
        print(f"{file.relative_to(ROOT)}:{line}: {what}")
        broken += 1
    print(f"house rules: {broken} broken" if broken else "house rules: kept")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
