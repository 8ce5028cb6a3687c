"""The code blocks of the pages for users."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
_BLOCK: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """A code block.

    Attributes:
        page: its page, from the project's root.
        line: the number of its first line.
        language: after the fence; "" if there is none.
        code: its lines.
        output: the lines of a `text` block that follows a Python block on the page: what its pipeline prints.
    """

    page: str
    line: int
    language: str
    code: str
    output: str = ""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def is_pipeline(self) -> bool:
        """Whether it is a whole script with a pipeline; other Python blocks are parts of scripts."""
        return (
            "import apache_beam" in self.code
            and re.search(r"^with \w+\.?Pipeline\(|^with beam", self.code, re.M) is not None
        )


def pages() -> list[Path]:
    """Return the pages for users."""
    of_developers = ROOT / "docs" / "developers"
    of_site = [path for path in sorted((ROOT / "docs").rglob("*.md")) if not path.is_relative_to(of_developers)]
    return [ROOT / "README.md", *of_site]


def blocks_of(path: Path) -> Iterator[Block]:
    """Yield the blocks of a page."""
    text = path.read_text(encoding="utf-8")
    found = list(_BLOCK.finditer(text))
    for number, match in enumerate(found):
        after = found[number + 1] if number + 1 < len(found) else None
        output = after[2] if match[1] == "python" and after and after[1] == "text" else ""
        line = text.count("\n", 0, match.start()) + 2
        yield Block(path.relative_to(ROOT).as_posix(), line, match[1], match[2], output)


def blocks(language: str) -> list[Block]:
    """Return all blocks of a language."""
    return [block for path in pages() for block in blocks_of(path) if block.language == language]
