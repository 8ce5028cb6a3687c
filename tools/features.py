"""Generates docs/reference/features.md, the supported features, from tests/contracts.toml and the tests' markers.

Reads the tests' sources without running them: `@pytest.mark.contract("ID")` on functions, classes or modules, with
`xfail(reason=…)` at the same place; and tests/conformance/reviewed.py for the SDK's own tests that fail or are not run.
`--check` writes nothing; it fails when the page is out of date. `--tests` prints the tests of each contract.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools import generated

ROOT = Path(__file__).resolve().parent.parent
CONTRACTS = ROOT / "tests" / "contracts.toml"
DOCUMENT = ROOT / "docs" / "reference" / "features.md"
REVIEWED = ROOT / "tests" / "conformance" / "reviewed.py"
TESTS = ROOT / "tests"

_ID = re.compile(r"[A-Z]+-\d\d")
_STREAMING = re.compile(
    r"^tests/(spark/(steps|streaming)|harness/(step|streaming)|chaos)/|^tests/jobs/\w*streams"
    r"|^tests/conformance/\w*streaming|Streaming"
)
_BATCH = re.compile(r"^tests/(spark/(batch|tasks|session)|harness|conformance|jobs|runner|cli)/|^tests/test_")
"""Paths of tests that run pipelines. Tests of the engine, the store and simulated jobs match neither."""


class ContractError(Exception):
    """The contracts and the markers contradict each other, or the file of contracts is malformed."""


@dataclass(frozen=True, slots=True)
class Contract:
    """A promise.

    Attributes:
        id: as in markers.
        area: title of its group.
        text: the promise.
        missing: the part that does not hold yet; "" if all holds.
        planned: not built yet, and without a test.
    """

    id: str
    area: str
    text: str
    missing: str = ""
    planned: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """The file of contracts."""

    contracts: tuple[Contract, ...]
    refused: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Shown:
    """A test with a contract's marker.

    Attributes:
        contract: the contract's id.
        test: `path::Class::function`, from the project's root.
        xfail: why it is expected to fail; None if it must pass.
    """

    contract: str
    test: str
    xfail: str | None = None


def read(text: str) -> Table:
    """Return the contracts in a TOML text, in its order.

    Raises:
        ContractError: an id is malformed or used twice, or a field is missing or unknown.
    """
    try:
        value = tomllib.loads(text)
        found = [
            Contract(id, area["title"], **fields) for area in value["area"] for id, fields in area["contracts"].items()
        ]
        refused = tuple(map(str, value["refused"]))
    except (tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise ContractError(f"{CONTRACTS.name}: {error}") from error
    ids = [contract.id for contract in found]
    if malformed := [id for id in ids if not _ID.fullmatch(id)]:
        raise ContractError(f"{CONTRACTS.name}: malformed id {', '.join(malformed)}: use AREA-00")
    if doubled := sorted({id for id in ids if ids.count(id) > 1}):
        raise ContractError(f"{CONTRACTS.name} has two contracts with the id {', '.join(doubled)}: change one")
    return Table(tuple(found), refused)


def shown(path: str, source: str) -> Iterator[Shown]:
    """Yield the contracts of one test module; `path` is its name in the result."""
    module = ast.parse(source, path)
    yield from _walk(path, module.body, _assigned_marks(module.body))


def _walk(name: str, body: Iterable[ast.stmt], inherited: list[ast.expr]) -> Iterator[Shown]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            marks = [*inherited, *node.decorator_list, *_assigned_marks(node.body)]
            inner = f"{name}::{node.name}"
            tests = list(_walk(inner, node.body, marks))
            yield from tests
            if not tests:  # its tests are inherited: the class stands for them
                yield from _marked(inner, marks)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
            yield from _marked(f"{name}::{node.name}", [*inherited, *node.decorator_list])


def _assigned_marks(body: Iterable[ast.stmt]) -> list[ast.expr]:
    return [
        node.value
        for node in body
        if isinstance(node, ast.Assign)
        and any(isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets)
    ]


def _marked(test: str, marks: Iterable[ast.expr]) -> Iterator[Shown]:
    ids: list[str] = []
    reason: str | None = None
    for node in (inner for mark in marks for inner in ast.walk(mark)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr == "contract":
            for argument in node.args:
                if not isinstance(argument, ast.Constant) or not isinstance(argument.value, str):
                    raise ContractError(f"{test}: a contract's id is a literal string")
                ids.append(argument.value)
        elif node.func.attr == "xfail":
            reason = next(
                (str(ast.literal_eval(k.value)) for k in node.keywords if k.arg == "reason" and _literal(k.value)),
                "no reason given",
            )
    for id in dict.fromkeys(ids):
        yield Shown(id, test, reason)


def _literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except ValueError:
        return False
    return True


def check(table: Table, found: Iterable[Shown]) -> None:
    """Refuse markers of unknown contracts, contracts without a test, and planned contracts with one.

    Raises:
        ContractError: with the name of every such contract.
    """
    known = {contract.id: contract for contract in table.contracts}
    marked: set[str] = set()
    for test in found:
        if test.contract not in known:
            raise ContractError(f"{test.test}: there is no contract {test.contract}")
        marked.add(test.contract)
    if untested := [c.id for c in table.contracts if not c.planned and c.id not in marked]:
        raise ContractError(f"no test is marked with {', '.join(untested)}: add a test, or set `planned = true`")
    if built := [c.id for c in table.contracts if c.planned and c.id in marked]:
        raise ContractError(f"tests are marked with {', '.join(built)}: remove `planned = true`")


def missing(contract: Contract, tests: Iterable[Shown]) -> str:
    """Return the part of a contract that does not hold: that in the file, and the reasons of expected failures."""
    reasons = (f"expected failure: {test.xfail}" for test in tests if test.xfail is not None)
    return "; ".join(dict.fromkeys(filter(None, [contract.missing, *reasons])))


def modes(tests: Iterable[Shown]) -> str:
    """Return the modes in which tests run pipelines; "" if they run none."""
    paths = [test.test for test in tests if test.xfail is None]
    streaming = [path for path in paths if _STREAMING.search(path)]
    batch = [path for path in paths if path not in streaming and _BATCH.search(path)]
    if batch and streaming:
        return "both"
    return "batch" if batch else "streaming" if streaming else ""


def reviewed(source: str, name: str) -> dict[str, str]:
    """Return a table of tests/conformance/reviewed.py: reasons by the SDK's test. Its names are the module's."""
    values: dict[str, object] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            values[node.targets[0].id] = _value(node.value, values)
    found = values[name]
    assert isinstance(found, dict)
    return found


def _value(node: ast.expr, values: dict[str, object]) -> object:
    match node:
        case ast.Dict():
            return {_value(k, values): _value(v, values) for k, v in zip(node.keys, node.values, strict=True) if k}
        case ast.JoinedStr():
            return "".join(str(_value(part, values)) for part in node.values)
        case ast.FormattedValue():
            return _value(node.value, values)
        case ast.Name():
            return values.get(node.id)
        case ast.Constant():
            return node.value
    return None


def page(table: Table, found: Iterable[Shown], suites: str) -> str:
    """Return the page for users.

    Args:
        table: the contracts, and the refused features.
        found: the markers of the tests.
        suites: tests/conformance/reviewed.py.
    """
    tests: dict[str, list[Shown]] = {contract.id: [] for contract in table.contracts}
    for test in found:
        tests[test.contract].append(test)
    counted = [len(reviewed(suites, name)) for name in ("GAPS", "GAPS_WITHOUT_FUSION", "NOT_RUN")]
    lines = [
        "# Supported features",
        "",
        "Each row is a promise. Tests in the repository show it, in the modes named: batch, streaming, or both. Rows",
        "without a mode are tested with engine or store alone, or with simulated jobs.",
        "Below: [what is refused](#refused), [Beam's own tests](#beams-own-tests), [what is planned](#planned).",
        "",
        "<!-- Generated by `make docs` from tests/contracts.toml and the tests' markers. -->",
    ]
    area = ""
    for contract in table.contracts:
        if contract.planned:
            continue
        if contract.area != area:
            area = contract.area
            lines += ["", f"## {area}", "", "| id | promise | tested in | missing |", "|---|---|---|---|"]
        of = tests[contract.id]
        lines.append(f"| {contract.id} | {contract.text} | {modes(of)} | {missing(contract, of)} |")
    lines += [
        "",
        "## Refused",
        "",
        "At submission, each item by its transform's name, all in one message:",
        "",
        *(f"- {each}" for each in table.refused),
        "",
        "## Beam's own tests",
        "",
        "The Python SDK's own tests of runners and transforms run on arcbeam, in batch and in streaming.",
        f"{counted[0]} of them fail, {counted[1]} more fail with `--no_fusion`, and {counted[2]} are not run.",
        "The reason for each is in `tests/conformance/reviewed.py`. What this means for pipelines:",
        "[Differences from other runners](../explanation/differences.md).",
        "",
        "## Planned",
        "",
        *(f"- {contract.text} ({contract.id})" for contract in table.contracts if contract.planned),
    ]
    return "\n".join(lines) + "\n"


def by_test(table: Table, found: Iterable[Shown]) -> str:
    """Return the tests of each contract, for a terminal."""
    found = list(found)
    lines = []
    for contract in table.contracts:
        lines.append(f"{contract.id} {contract.text}")
        names = sorted(test.test for test in found if test.contract == contract.id)
        lines += [f"    {name}" for name in names] or ["    planned"]
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Write the page, check that it is up to date, or print the tests."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page is out of date")
    parser.add_argument("--tests", action="store_true", help="print which test shows which contract; write nothing")
    options = parser.parse_args(arguments)
    found = [
        test
        for path in sorted(TESTS.rglob("test_*.py"))
        for test in shown(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
    ]
    try:
        table = read(CONTRACTS.read_text(encoding="utf-8"))
        check(table, found)
    except ContractError as error:
        print(error, file=sys.stderr)
        return 1
    if options.tests:
        print(by_test(table, found))
        return 0
    return generated.write_or_check(
        {DOCUMENT: page(table, found, REVIEWED.read_text(encoding="utf-8"))}, check=options.check
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
