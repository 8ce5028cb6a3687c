"""Checks docs, docstrings, comments, messages and names of tests against the word list `tools/wordlist.toml`.

    python tools/check_words.py               all Markdown and Python files that git tracks
    python tools/check_words.py FOLDER|FILE…  these, relative to the project's folder

Each finding is printed as `path:line: "words": use …`. The exit code is 1 if there is one. Code blocks and spans of
Markdown are not checked, nor string literals without a blank: they are names.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "tools" / "wordlist.toml"

_FENCED = re.compile(r"^( *)(```|~~~).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`[^`\n]*`")
_TEST_NAME = re.compile(r"^ *(?:def|class) ((?:test|Test)\w*)", re.MULTILINE)
_GAP = r"(?:\s+(?:\# *)?)"
"""What is between two words: also the end of a line, and the mark of the next line's comment."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the list."""

    pattern: re.Pattern[str]
    use: str
    but: re.Pattern[str] | None

    def found(self, text: str) -> Iterator[re.Match[str]]:
        """Yield what the text should not contain."""
        accepted = [match.span() for match in self.but.finditer(text)] if self.but else []
        for match in self.pattern.finditer(text):
            if not any(start <= match.start() and match.end() <= end for start, end in accepted):
                yield match


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of prose, and the line of its file on which it begins."""

    line: int
    text: str


def _pattern(source: str) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{source.replace(' ', _GAP)})\b", re.IGNORECASE)


def entries(list_: Path = LIST) -> tuple[Entry, ...]:
    """Read the entries of a list."""
    return tuple(
        Entry(_pattern(entry["pattern"]), entry["use"], _pattern(entry["but"]) if "but" in entry else None)
        for entry in tomllib.loads(list_.read_text(encoding="utf-8"))["words"]
    )


def texts_of(path: Path) -> Iterator[Text]:
    """Yield the prose of a file: of Python comments, strings and names of tests; else all but code."""
    content = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        yield from _of_python(content)
        return
    if path.suffix == ".md":
        content = _SPAN.sub(_blank, _FENCED.sub(_blank, content))
    yield Text(1, content)


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", "\N{MIDDLE DOT}", match[0])


def _of_python(source: str) -> Iterator[Text]:
    comment: list[str] = []
    begin = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if not comment:
                begin = token.start[0]
            comment.append(token.string)
        elif token.type != tokenize.NL or token.line.strip() == "":
            if comment:
                yield Text(begin, "\n".join(comment))
                comment = []
            if token.type in _STRINGS and re.search(r"\s", token.string):
                yield Text(token.start[0], _SPAN.sub(_blank, token.string))
    for match in _TEST_NAME.finditer(source):
        words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", match[1]).replace("_", " ")
        yield Text(source.count("\n", 0, match.start()) + 1, words)


_STRINGS = frozenset(
    getattr(tokenize, name) for name in ("STRING", "FSTRING_MIDDLE", "TSTRING_MIDDLE") if hasattr(tokenize, name)
)


def findings(path: Path, list_: tuple[Entry, ...]) -> Iterator[str]:
    """Yield a line for each finding in a file."""
    for text in texts_of(ROOT / path):
        for entry in list_:
            for match in entry.found(text.text):
                line = text.line + text.text.count("\n", 0, match.start())
                words = " ".join(match[0].replace("#", " ").split())
                yield f'{path}:{line}: "{words}": use {entry.use}'


def _tracked(names: list[str]) -> list[Path]:
    out = subprocess.run(["git", "ls-files", "-z", "--", *names], cwd=ROOT, check=True, capture_output=True, text=True)
    found = (Path(name) for name in out.stdout.split("\0") if name)
    return [path for path in found if path.suffix in {".py", ".md"} and (ROOT / path).exists()]


def main(names: list[str]) -> int:
    """Check; see above."""
    paths = _tracked(names)
    list_ = entries()
    found = [line for path in paths for line in findings(path, list_)]
    if found:
        print(*found, sep="\n")
        print(f"{len(found)} findings; the words and what to use instead are in {LIST.relative_to(ROOT)}")
        return 1
    print(f"words: {len(paths)} files checked")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
