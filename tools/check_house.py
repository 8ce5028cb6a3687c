"""Checks rules of the project that no other tool checks: sizes, import circles, docstrings, external imports.

Sizes are also checked in tests and benchmarks.

import-linter checks the layers. This tool checks parts of external packages (Beam's protos by kind), import circles
inside of a package, and the number of modules in a package. Every violation is printed as `path:line: what`; the exit
code is 1 if there is any.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools import check_sizes

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "arcbeam"
BESIDE = tuple(ROOT / name for name in ("simulator", "tests", "benchmarks", "examples", "tools"))
"""Folders with the same limits of size, but without rules for imports."""
MAX_LINES = 500
MAX_MODULES = 16
"""Limit for one folder, without `__init__.py`."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Only `allowed` parts may import names with `target` (one or several adjacent parts of a dotted name)."""

    target: str
    allowed: tuple[str, ...]
    why: str


RULES = (
    Rule("pyspark", ("spark",), "only spark imports pyspark"),
    Rule("py4j", (), "nothing reaches into the JVM"),
    Rule("beam_fn_api_pb2", ("harness", "fnapi"), "the Fn API is the harness's and fnapi's"),
    Rule("beam_fn_api_pb2_grpc", ("fnapi",), "the Fn API's services are fnapi's"),
    Rule("beam_job_api_pb2", ("jobs", "runner"), "the Job API is the job service's"),
    Rule("beam_job_api_pb2_grpc", ("jobs", "runner"), "the Job API is the job service's"),
    Rule("beam_artifact_api_pb2", ("jobs", "runner", "fnapi"), "artifacts are the job service's and fnapi's"),
    Rule("beam_artifact_api_pb2_grpc", ("jobs", "runner", "fnapi"), "artifacts are the job service's and fnapi's"),
    Rule(
        "beam_runner_api_pb2",
        ("translate", "harness", "fnapi", "jobs", "runner"),
        "pipeline protos are not for everybody",
    ),
    Rule("fn_api_runner.translations", ("translate", "harness"), "the SDK's graph phases are translate's"),
    Rule("arcbeam.testing", ("testing",), "production code never imports testing"),
)

BEAM_FREE = ("model", "store", "engine", "streaming", "errors")
"""Parts that must not import Beam."""

OPTIONS_ONLY = "apache_beam.options"
"""All that arcbeam.options may import of Beam."""


def imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted name) of all imports of a module; `from a import b` gives a.b, to include submodules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"


def inside(name: str, target: str) -> bool:
    """Return whether a dotted name is `target` or below it."""
    return name == target or name.startswith(target + ".")


def oversized(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, what) if a module is too long."""
    lines = text.count("\n")
    if lines > MAX_LINES:
        yield lines, f"{lines} lines; {MAX_LINES} at most: split it by knowledge"


_REFERENCE = re.compile(r"See `[^`]+`\.?")


def references(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, what) of each method whose docstring only says where another one is."""
    for node in ast.walk(tree):
        for method in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(method)
                if text and _REFERENCE.fullmatch(text):
                    yield method.lineno, f"{method.name}: {text} Mark it with @override instead, without a docstring"


def violations(path: Path, text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, what) of every broken rule in one module, whose path is relative to the package."""
    part = path.parts[0].removesuffix(".py")
    tree = ast.parse(text, str(path))
    yield from oversized(text)
    yield from references(tree)
    if not ast.get_docstring(tree):
        yield 1, "no module docstring: say what it owns and what it must not know"
    if path.name == "__init__.py":
        for node in tree.body:
            # A package's interface has imports, __all__, and a lazy __getattr__ that imports; no other code.
            if isinstance(node, ast.ClassDef):
                yield node.lineno, "__init__.py only re-exports"
    for line, name in imports(tree):
        for rule in RULES:
            if f".{rule.target}." in f".{name}." and part not in rule.allowed:
                yield line, f"imports {name}: {rule.why}"
        if inside(name, "apache_beam"):
            if part in BEAM_FREE:
                yield line, f"imports {name}: {part} must not know Beam"
            if part == "options" and not inside(name, OPTIONS_ONLY):
                yield line, f"imports {name}: options may know only {OPTIONS_ONLY}"
        if part == "errors" and inside(name, "arcbeam"):
            yield line, f"imports {name}: errors must not import arcbeam"


def imported(tree: ast.Module) -> Iterator[str]:
    """Yield all imports of a module, also in functions and for types."""
    nodes: list[ast.AST] = [tree]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        nodes.extend(ast.iter_child_nodes(node))


def circles(modules: dict[str, str]) -> Iterator[list[str]]:
    """Yield groups of modules that import each other, each sorted.

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
    """Return the module of an imported name, which may be the module itself."""
    if dotted in modules:
        return dotted
    parent = dotted.rpartition(".")[0]
    return parent if parent in modules else None


def reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    """Return all modules that a module imports, directly or indirectly."""
    found: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting.extend(graph[name])
    return found


def crowded(folders: Iterable[Path]) -> Iterator[tuple[Path, str]]:
    """Yield folders with too many modules."""
    for folder in folders:
        count = len([file for file in folder.glob("*.py") if file.name != "__init__.py"])
        if count > MAX_MODULES:
            yield folder, f"{count} modules; {MAX_MODULES} at most: group them into packages"


def folders(root: Path) -> list[Path]:
    """Yield a folder and all folders below it that may have modules."""
    return [path for path in [root, *sorted(root.rglob("*"))] if path.is_dir() and path.name != "__pycache__"]


def main() -> int:
    """Check every module; return 1 if one breaks a rule."""
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
