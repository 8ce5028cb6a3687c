"""The rules of the house that no other tool knows: sizes, docstrings, and who may import what from outside.

import-linter watches the layers; this looks below the names of external packages (Beam's protos by kind). Every
violation is printed as `path:line: what`, and the exit code is 1 if there is any.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "arcbeam"
MAX_LINES = 500


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
        ("translate", "harness", "jobs", "runner", "executor"),
        "pipeline protos are not for everybody",
    ),
    Rule("fn_api_runner.translations", ("translate", "harness"), "the SDK's graph phases are translate's"),
    Rule("arcbeam.testing", ("testing",), "production code never imports testing"),
)

BEAM_FREE = ("model", "store", "engine", "steps", "errors", "web")
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


def violations(path: Path, text: str) -> Iterator[tuple[int, str]]:
    """(line, what) of every broken rule in one module, whose path is relative to the package."""
    part = path.parts[0].removesuffix(".py")
    tree = ast.parse(text, str(path))
    lines = text.count("\n")
    if lines > MAX_LINES:
        yield lines, f"{lines} lines; {MAX_LINES} at most: split it by what it knows"
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


def main() -> int:
    """Checks every module; 1 if any breaks a rule."""
    broken = 0
    for file in sorted(PACKAGE.rglob("*.py")):
        for line, what in violations(file.relative_to(PACKAGE), file.read_text()):
            print(f"{file.relative_to(ROOT)}:{line}: {what}")
            broken += 1
    print(f"house rules: {broken} broken" if broken else "house rules: kept")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
