"""The table of ends and kills in docs/explanation/guarantees.md, from the output of `tests.chaos.test_ends`.

python -m tests.chaos.test_ends local >local.log; python -m tests.chaos.matrix local.log s3.log
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tests.chaos.points import POINTS, VICTIMS
from tests.chaos.test_ends import ENDS, cells

_DOCUMENT: Final = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "guarantees.md"
_BEGIN, _END = "<!-- matrix:begin -->\n", "<!-- matrix:end -->"
_LINE: Final = re.compile(
    r"^(?P<where>local|s3): (?P<end>\w+), (?P<victim>\w+), "
    rf"(?P<point>{'|'.join(POINTS)}): (?P<outcome>well, and not reached|well|WRONG)"
)
_SHORT: Final = {"well": "✓", "well, and not reached": "–", "WRONG": "**wrong**"}


def table(lines: Iterable[str]) -> str:
    """Return a table: a row for each end and victim, a column for each point; cells show local disk and S3."""
    reported: dict[tuple[str, ...], str] = {}
    for line in lines:
        if found := _LINE.match(line):
            reported[found["where"], found["end"], found["victim"], found["point"]] = _SHORT[found["outcome"]]
    there = set(cells())

    def cell(*which: str) -> str:
        if which not in there:
            return ""
        return " / ".join(dict.fromkeys(reported.get((where, *which), "not run") for where in ("local", "s3")))

    rows = [f"| end | killed | {' | '.join(POINTS)} |", f"|---|---|{'---|' * len(POINTS)}"]
    rows += [
        f"| {end} | {victim} | {' | '.join(cell(end, victim, point) for point in POINTS)} |"
        for end in ENDS
        for victim in VICTIMS
    ]
    return "\n".join(rows) + "\n"


def main(*logs: str) -> None:
    """Write the table."""
    text = _DOCUMENT.read_text()
    begin, end = text.index(_BEGIN) + len(_BEGIN), text.index(_END)
    lines = [line for log in logs for line in Path(log).read_text().splitlines()]
    _DOCUMENT.write_text(f"{text[:begin]}\n{table(lines)}\n{text[end:]}")


if __name__ == "__main__":
    main(*sys.argv[1:])
