"""Generates docs/supported-features.md, for users, and docs/contract-tests.md: which contract is shown by which test.

Reads docs/contracts.md for the ids and their texts, the tests' sources (never running them) for
`@pytest.mark.contract("ID")` on functions, classes or modules and `xfail(reason=…)` beside it, and
tests/conformance/reviewed.py for the SDK's own tests that fail, or are not run.
`--check` writes nothing; it fails when a document is not what would be generated.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONTRACTS = ROOT / "docs" / "contracts.md"
DOCUMENT = ROOT / "docs" / "supported-features.md"
TESTS_DOCUMENT = ROOT / "docs" / "contract-tests.md"
REVIEWED = ROOT / "tests" / "conformance" / "reviewed.py"
TESTS = ROOT / "tests"

_ROW = re.compile(r"^\| ([A-Z]+-\d\d) \| (.+) \|$")
_SECTION = re.compile(r"^## (.+)$")
_NO_PIPELINE_YET = (
    "in simulated jobs",
    "in the engine alone; ",
    "in the engine; ",
    "in the store alone; ",
    "in the store and in simulated",
)
"""Words for what is missing where no pipeline of a user has any of it."""
_PART = re.compile(r"^- ([A-Z]+-\d\d): (.+)$")


_STREAMING = re.compile(
    r"^tests/(spark/steps|harness/step|chaos)/|^tests/jobs/\w*steps|^tests/conformance/\w*streaming|Streaming"
)
_BATCH = re.compile(r"^tests/(spark/(batch|tasks|session)|harness|conformance|jobs)/|^tests/test_")
"""Of tests that run pipelines, in steps or in phases. Those of the engine, the store and simulated jobs are neither."""


class UnknownContractError(Exception):
    """A marker names an unknown contract, or not by a literal string; or two contracts share an id."""


@dataclass(frozen=True, slots=True)
class Contract:
    """A row of the table."""

    id: str
    section: str
    text: str


@dataclass(frozen=True, slots=True)
class Shown:
    """A test that carries a contract.

    Attributes:
        contract: the contract's id.
        test: `path::Class::function`, from the project's root.
        xfail: why it is expected to fail; None if it must pass.
    """

    contract: str
    test: str
    xfail: str | None = None


def contracts(text: str) -> list[Contract]:
    """The rows of docs/contracts.md, in its order."""
    found, section = [], ""
    for line in text.splitlines():
        if match := _SECTION.match(line):
            section = match.group(1)
        elif match := _ROW.match(line):
            found.append(Contract(match.group(1), section, match.group(2)))
    ids = [contract.id for contract in found]
    if doubled := sorted({id_ for id_ in ids if ids.count(id_) > 1}):
        raise UnknownContractError(f"{CONTRACTS.name} has two rows with the id {', '.join(doubled)}: change one")
    return found


def shown(path: str, source: str) -> Iterator[Shown]:
    """The contracts that one test module carries; `path` is how it is called in the result."""
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
                    raise UnknownContractError(f"{test}: a contract's id is a literal string")
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


def missing_parts(text: str) -> dict[str, str]:
    """What docs/contracts.md says is missing of contracts that tests show, by id."""
    matches = map(_PART.match, text.splitlines())
    return {match.group(1): match.group(2) for match in matches if match}


def status(tests: list[Shown], missing: str = "") -> str:
    """What the tests of one contract say about it, and what they do not."""
    if not tests:
        return "not yet"
    reasons = list(dict.fromkeys(test.xfail for test in tests if test.xfail is not None))
    expected = f"xfail ({'; '.join(reasons)})"
    if all(test.xfail is not None for test in tests):
        return expected
    if missing or reasons:
        return f"in part: {'; '.join(filter(None, [missing.rstrip('.'), expected if reasons else '']))}"
    return "shown"


def modes(tests: Iterable[Shown]) -> str:
    """In which modes tests show something on pipelines; "" if they run none."""
    paths = [test.test for test in tests if test.xfail is None]
    streaming = [path for path in paths if _STREAMING.search(path)]
    batch = [path for path in paths if path not in streaming and _BATCH.search(path)]
    return ", ".join(name for name, of in (("batch", batch), ("streaming", streaming)) if of)


def render(table: list[Contract], found: list[Shown], missing: dict[str, str] | None = None) -> str:
    """The document of tests; `missing` is what is missing of contracts, by id.

    Raises:
        UnknownContractError: a test carries an id that is not in the table.
    """
    known = {contract.id for contract in table}
    for test in found:
        if test.contract not in known:
            raise UnknownContractError(f"{test.test}: there is no contract {test.contract}")
    missing = missing or {}
    by_id = {c.id: [t for t in found if t.contract == c.id] for c in table}
    says = {id: status(tests, missing.get(id, "")) for id, tests in by_id.items()}
    counts = [text.split(" ")[0].rstrip(",") for text in says.values()]
    lines = [
        "# The contracts and their tests",
        "",
        "Generated by `make docs` from the contract markers of the tests; not edited by hand. *Shown*: its tests must",
        "pass. *In part*: the same, and what is missing. *xfail*: a test shows that it does not hold, and why. *Not",
        "yet*: no test carries it. *Modes*: in which its tests run pipelines, in phases (batch) or in steps",
        "(streaming); others are of the engine, the store, or simulated jobs.",
        "",
        f"{counts.count('shown')} of {len(table)} contracts shown, {counts.count('in')} in part, "
        f"{counts.count('xfail')} expected failures, {counts.count('not')} not yet.",
    ]
    section = ""
    for contract in table:
        if contract.section != section:
            section = contract.section
            lines += ["", f"## {section}", "", "| id | contract | status | modes | tests |", "|---|---|---|---|---|"]
        tests = by_id[contract.id]
        names = "<br>".join(f"`{test.test}`" for test in sorted(tests, key=lambda t: t.test))
        said = says[contract.id].replace("|", "/")
        lines.append(f"| {contract.id} | {contract.text} | {said} | {modes(tests)} | {names} |")
    return "\n".join(lines) + "\n"


def notes(text: str, title: str) -> list[str]:
    """The lines of a section of docs/contracts.md, without its title."""
    _, found, rest = text.partition(f"\n## {title}\n")
    if not found:
        raise UnknownContractError(f"docs/contracts.md has no section '{title}'")
    return rest.partition("\n## ")[0].strip().splitlines()


def reviewed(source: str, name: str) -> dict[str, str]:
    """A table of tests/conformance/reviewed.py: why, by the SDK's test. Names in it are looked up in the module."""
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


def for_users(table: list[Contract], found: list[Shown], text: str, suites: str) -> str:
    """The page for users.

    Args:
        table: the contracts.
        found: what the tests carry.
        text: docs/contracts.md.
        suites: tests/conformance/reviewed.py.
    """
    missing = missing_parts(text)
    ran = {c.id: modes(t for t in found if t.contract == c.id) for c in table}
    says = {c.id: status([t for t in found if t.contract == c.id], missing.get(c.id, "")) for c in table}
    works = [c for c in table if says[c.id] == "shown"]
    in_part = [
        c
        for c in table
        if says[c.id].startswith("in part") and not any(word in says[c.id] for word in _NO_PIPELINE_YET)
    ]
    later = [c for c in table if c not in works and c not in in_part]
    lines = [
        "# Supported features",
        "",
        "Generated by `make docs`; not edited by hand. The rows are the [contracts](contracts.md) of the project; the",
        "tests that show each are in [contract-tests.md](contract-tests.md). Behind each is in which modes tests show",
        "it on pipelines: batch, for bounded ones, and streaming, in steps.",
        "",
        "## Works",
        "",
        *(f"- {c.text} ({', '.join(filter(None, (c.id, ran[c.id])))})" for c in works),
        "",
        "## Works in part",
        "",
        "| contract | modes | what is missing |",
        "|---|---|---|",
        *(
            f"| {c.text} ({c.id}) | {ran[c.id]} | {says[c.id].removeprefix('in part: ').replace('|', '/')} |"
            for c in in_part
        ),
        "",
        "## Refused",
        "",
        *notes(text, "Refused"),
        "",
        "Of the SDK's own tests, these fail:",
        "",
        *_listed(reviewed(suites, "GAPS")),
        "",
        "These fail without fusion:",
        "",
        *_listed(reviewed(suites, "GAPS_WITHOUT_FUSION")),
        "",
        "These are not run:",
        "",
        *_listed(reviewed(suites, "NOT_RUN")),
        "",
        "## Differs from other runners",
        "",
        *notes(text, "Different from other runners"),
        "",
        "## Not shown yet",
        "",
        "No test shows these on a user's pipeline; some hold in the engine and in simulated jobs:",
        f"{', '.join(c.id for c in later)}.",
    ]
    return "\n".join(lines) + "\n"


def _listed(tests: dict[str, str]) -> list[str]:
    return [f"- `{test}`: {why}" for test, why in sorted(tests.items())]


def main(arguments: list[str]) -> int:
    """Writes the documents, or with --check says whether they are up to date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a document is out of date")
    options = parser.parse_args(arguments)
    found = [
        test
        for path in sorted(TESTS.rglob("test_*.py"))
        for test in shown(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
    ]
    try:
        text = CONTRACTS.read_text(encoding="utf-8")
        table = contracts(text)
        suites = REVIEWED.read_text(encoding="utf-8")
        documents = {
            DOCUMENT: for_users(table, found, text, suites),
            TESTS_DOCUMENT: render(table, found, missing_parts(text)),
        }
    except UnknownContractError as error:
        print(error, file=sys.stderr)
        return 1
    code = 0
    for path, document in documents.items():
        name = path.relative_to(ROOT)
        if not options.check:
            path.write_text(document, encoding="utf-8")
            print(f"{name}: written")
        elif path.exists() and path.read_text(encoding="utf-8") == document:
            print(f"{name}: up to date")
        else:
            print(f"{name} is out of date: run make docs", file=sys.stderr)
            code = 1
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
