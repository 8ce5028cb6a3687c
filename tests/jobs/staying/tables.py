"""Tables of docs/reference/what-stays.md that tests read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[3]


def cells_for(test: str) -> Iterator[tuple[str, str, str]]:
    """Yield row, column and text of each cell of the table for a test."""
    name = Path(test).resolve().relative_to(_ROOT).as_posix()
    text = (_ROOT / "docs" / "reference" / "what-stays.md").read_text(encoding="utf-8")
    _, mark, after = text.partition(f"<!-- the input of {name} -->\n")
    assert mark, name
    lines = after.partition("\n\n")[0].splitlines()
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    for row in rows:
        assert len(row) == len(head), row
        yield from ((row[0], column, cell) for column, cell in zip(head[1:], row[1:], strict=True))
