"""Mutants that change nothing that may be observed, and the page with the reasons, and with what was found of all.

Run as a module it writes the page; with `--check` it compares it.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tools import generated, plant

ROOT = Path(__file__).resolve().parents[2]
TABLES = ROOT / "tests" / "mutants"
MEASURED = TABLES / "measured.toml"
"""How many mutants of the default sample each package has, and how many were found, when it was measured last."""
PAGE = ROOT / "docs" / "developers" / "mutants.md"
SEED = "1"
"""Of the sample whose equivalent mutants are argued."""

_HEAD = """# Mutants that no test can find

<!-- Generated from tests/mutants/*.toml by `make docs`. -->

`make mutants` tries 40 small mistakes of each package; see [testing](testing.md). These of the default sample change
nothing that a test may observe. An entry that is no longer in the sample fails.

## Shares
{how}

| package | mutants | found | equivalent | survived | share found | survivors are in |
|---|---|---|---|---|---|---|
"""


@dataclass(frozen=True, slots=True)
class Equivalent:
    """A mutant that no test can find.

    Attributes:
        file: path of the module in the tree.
        old: text that occurs once in it.
        new: its replacement.
        why: what makes both texts equal to all observers.
    """

    file: str
    old: str
    new: str
    why: str

    @property
    def package(self) -> str:
        """Return the package of the module."""
        return self.file.split("/")[2]


@dataclass(frozen=True, slots=True)
class Found:
    """What tests have found of a package's sample.

    Attributes:
        mutants: the size of the sample.
        found: how many of them tests have found.
        survived: the modules of those that are neither found nor equivalent.
    """

    mutants: int
    found: int
    survived: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Measured:
    """Shares of packages.

    Attributes:
        how: they were measured, in whole sentences.
        packages: the counts of each package that was measured.
    """

    how: str
    packages: Mapping[str, Found]


def equivalents(tables: Path = TABLES) -> list[Equivalent]:
    """Read all tables."""
    return [
        Equivalent(**entry)
        for path in sorted(tables.glob("*.toml"))
        for entry in tomllib.loads(path.read_text(encoding="utf-8")).get("equivalent", ())
    ]


def text_of(each: Equivalent) -> str:
    """Return the text of the mutated module.

    Raises:
        ValueError: the text to replace is not there exactly once.
    """
    mistake = plant.Mistake(each.file, "", each.file, each.old, each.new, found_by_nothing=each.why)
    return plant.planted((ROOT / each.file).read_text(encoding="utf-8"), mistake)


def measured(table: Path = MEASURED) -> Measured:
    """Read the newest shares."""
    found = tomllib.loads(table.read_text(encoding="utf-8"))
    return Measured(
        found["how"],
        {
            name: Found(each["mutants"], each["found"], tuple(each.get("survived", ())))
            for name, each in found["package"].items()
        },
    )


def page(entries: list[Equivalent], shares: Measured) -> str:
    """Return the page."""
    parts = [_HEAD.format(how=shares.how.strip())]
    for package, of in sorted(shares.packages.items()):
        equal = sum(each.package == package for each in entries)
        tried = of.mutants - equal
        assert tried - of.found == len(of.survived), package
        where = ", ".join(f"`{module}`" for module in of.survived)
        row = (package, of.mutants, of.found, equal, len(of.survived), f"{of.found / tried:.0%}", where)
        parts.append(f"| {' | '.join(map(str, row))} |\n")
    for package in sorted({each.package for each in entries}):
        parts.append(f"\n## {package}\n| module | mutant | why |\n|---|---|---|\n")
        for each in entries:
            if each.package == package:
                name = each.file.removeprefix("src/arcbeam/").removesuffix(".py").replace("/", ".")
                parts.append(f"| `{name}` | {_shown(each.new)} | {each.why} |\n")
    return "".join(parts)


def _shown(text: str) -> str:
    return "`" + " ".join(text.split()).replace("|", "\\|") + "`"


if __name__ == "__main__":
    sys.exit(generated.write_or_check({PAGE: page(equivalents(), measured())}, check="--check" in sys.argv[1:]))
