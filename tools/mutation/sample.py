"""Chooses the mutants to try: the same ones for the same seed, and nearly the same ones after a change of the code.

Cosmic Ray's operators say where a module can be mutated, and how. A *place* is a range of source text with all its
mutants, so that a `+` with eleven mutants is as likely as a `not`. A seed orders the places of a package by the digest
of their text and surroundings; the first ones are the sample. An edit moves no other place in this order.

Excluded is what other checks protect and no test of behaviour can find: annotations, code for type checkers, `frozen`
and `slots` of dataclasses (mypy), and sizes that `arcbeam.sizes` declares (tests/small).
"""

from __future__ import annotations

import ast
import difflib
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from cosmic_ray import plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.ast.ast_query import ASTQuery
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator

_TYPING_DECORATORS = {"override", "overload", "final", "abstractmethod"}
_DECLARED_SIZES = {"threshold", "cache_size"}
_UNCHANGED = {"name", "string", "newline", "fstring_start", "fstring_string", "fstring_end"}
"""Leaves of the syntax tree that no operator changes."""
_MYPY_CHECKS = {"frozen", "slots"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """A module with one small mistake.

    Attributes:
        file: path of the module in the tree.
        operator: Cosmic Ray's name of the kind of mistake.
        text: the whole module with the mistake.
        change: the removed and the added lines, without indentation, after "-" and "+".
        line: number of the first changed line.
    """

    file: str
    operator: str
    text: str = field(repr=False)
    change: tuple[str, ...]
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.operator}\n    " + "\n    ".join(self.change)

    @property
    def id(self) -> str:
        """Return a digest that changes with any change of the module."""
        return hashlib.sha256(f"{self.file}\0{self.text}".encode()).hexdigest()[:16]


@dataclass(slots=True)
class Place:
    """A range of a module's text.

    Attributes:
        file: path of the module.
        rank: its position in the seed's order.
        ways: (operator, occurrence of the operator in the module) of each mutant.
    """

    file: str
    rank: str
    ways: list[tuple[str, int]] = field(default_factory=list)


def sample(files: Mapping[str, str], seed: str, size: int) -> list[Mutant]:
    """Return up to `size` mutants of a package, each at another place.

    Args:
        files: texts of the modules, by path.
        seed: decides the order of places, and the mutant of each.
        size: the maximum number of mutants.
    """
    ordered = sorted((place for file, text in files.items() for place in places(file, text, seed)), key=_rank)
    found: list[Mutant] = []
    for place in ordered:
        if len(found) == size:
            break
        if (mutant := _mutant(place, files[place.file], seed)) is not None:
            found.append(mutant)
    return found


def places(file: str, text: str, seed: str) -> list[Place]:
    """Return all places of a module, also those without a useful mutant."""
    lines = text.splitlines()
    found: dict[tuple[object, ...], Place] = {}
    same: Counter[str] = Counter()
    occurrences: Counter[str] = Counter()
    for node in ast_nodes(get_ast(text)):
        if node.type in _UNCHANGED:
            continue
        for name, operator in _operators().items():
            for start, end in operator.mutation_positions(node):
                if (place := found.get((start, end))) is None:
                    scope = ASTQuery(node).get_definition_name()
                    source = lines[start[0] - 1]
                    key = f"{file}\0{scope}\0{source.strip()}\0{start[1] - len(source) + len(source.lstrip())}"
                    place = found[start, end] = Place(file, _digest(seed, key, str(same[key])))
                    same[key] += 1
                place.ways.append((name, occurrences[name]))
                occurrences[name] += 1
    return list(found.values())


def _rank(place: Place) -> str:
    return place.rank


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@cache
def _operators() -> Mapping[str, Operator]:
    """Return all operators that need no arguments, by name."""
    classes = {name: plugins.get_operator(name) for name in plugins.operator_names()}
    return {name: operator() for name, operator in classes.items() if not operator.arguments()}


def _mutant(place: Place, text: str, seed: str) -> Mutant | None:
    """Return the first mutant of a place, in the seed's order, that is a module and behaves differently."""
    for n in sorted(range(len(place.ways)), key=lambda n: _digest(seed, place.rank, str(n))):
        name, occurrence = place.ways[n]
        mutated = mutate_code(text, _operators()[name], occurrence)
        if mutated is not None and (behaviour := _behaviour(mutated)) and behaviour != _behaviour(text):
            return Mutant(place.file, name.removeprefix("core/"), mutated, *_change(text, mutated))
    return None


def _change(old: str, new: str) -> tuple[tuple[str, ...], int]:
    before, after = old.splitlines(), new.splitlines()
    for tag, start, end, to, until in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag != "equal":
            removed = tuple(f"-{line.strip()}" for line in before[start:end] if line.strip())
            return (*removed, *(f"+{line.strip()}" for line in after[to:until])), start + 1
    raise ValueError("the texts are equal")


@cache
def _behaviour(text: str) -> str:
    """Return the syntax tree of what tests may observe, or "" if the text is no module."""
    try:
        compile(text, "mutant", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return ""
    return ast.dump(_Observable().visit(ast.parse(text)))


class _Observable(ast.NodeTransformer):
    """Removes what only type checkers see, and numbers on which no result depends."""

    def visit_FunctionDef(self, node: Any) -> Any:
        node.returns = None
        node.decorator_list = [each for each in node.decorator_list if _name(each) not in _TYPING_DECORATORS]
        return self.generic_visit(node)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_arg(self, node: ast.arg) -> Any:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        node.annotation = ast.Constant(None)
        return self.generic_visit(node)

    def visit_If(self, node: ast.If) -> Any:
        if {_name(each) for each in ast.walk(node.test)} & {"TYPE_CHECKING", "__name__"}:
            return None
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> Any:
        if _name(node) in _DECLARED_SIZES:
            node.args = []
        elif _name(node) == "dataclass":
            node.keywords = [each for each in node.keywords if each.arg not in _MYPY_CHECKS]
        elif _name(node) == "cast":
            node.args = node.args[1:]
        return self.generic_visit(node)


def _name(node: ast.AST) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Call(func=function):
            return _name(function)
    return ""


def modules(package: Path, root: Path) -> dict[str, str]:
    """Return the texts of a package's modules, by path in the tree."""
    paths: Sequence[Path] = sorted(package.rglob("*.py"))
    return {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in paths}
