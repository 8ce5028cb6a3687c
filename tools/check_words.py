"""Checks docs, docstrings, comments, messages and identifiers against the word list `tools/wordlist.toml`.

    python tools/check_words.py               all Markdown, Python, TOML and YAML files that git tracks
    python tools/check_words.py FOLDER|FILE…  these, relative to the project's folder

Each finding is printed as `path:line: "words": use …`. The exit code is 1 if there is one. Code blocks and spans of
Markdown are not checked, nor the code in tables of mistakes and mutants (`old` and `new` in TOML).

Prose is checked by the entries `words`, identifiers by the entries `identifiers`. An identifier is what a file defines:
a class, function, parameter, attribute, name, constant, import alias, or a name in TOML. It is checked as its kind and
its words: `class RequestQueue` as "class request queue", `self._said` as "attribute said", `_MOST` as "constant most".
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "tools" / "wordlist.toml"

_FENCED = re.compile(r"^( *)(```|~~~).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`[^`\n]*`")
_CHECKED = {".py", ".md", ".toml", ".yaml", ".yml"}
_TOML_CODE = re.compile(
    r"^(?:old|new|file|tests|pattern|but) = (?:\"\"\".*?\"\"\"|\'\'\'.*?\'\'\'|\[.*?\]$|.*?$)", re.MULTILINE | re.DOTALL
)
_TOML_NAME = re.compile(r"^name = [\"']([\w-]+)[\"']", re.MULTILINE)
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_TEST_NAME = re.compile(r"^ *(?:def|class) ((?:test|Test)\w*)", re.MULTILINE)
_GAP = r"(?:\s+(?:\# *)?)"
"""What is between two words: also the end of a line, and the mark of the next line's comment."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the list."""

    pattern: re.Pattern[str]
    use: str
    but: re.Pattern[str] | None
    where: str = ""

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


@dataclass(frozen=True, slots=True)
class Entries:
    """The entries of a list: those for prose, and those for identifiers."""

    words: tuple[Entry, ...]
    identifiers: tuple[Entry, ...]


def _pattern(source: str) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{source.replace(' ', _GAP)})\b", re.IGNORECASE)


def entries(list_: Path = LIST) -> Entries:
    """Read the entries of a list."""
    tables = tomllib.loads(list_.read_text(encoding="utf-8"))
    return Entries(*(tuple(map(_entry, tables.get(kind, ()))) for kind in ("words", "identifiers")))


def _entry(table: Mapping[str, str]) -> Entry:
    but = _pattern(table["but"]) if "but" in table else None
    return Entry(_pattern(table["pattern"]), table["use"], but, table.get("where", ""))


def texts_of(path: Path) -> Iterator[Text]:
    """Yield the prose of a file: of Python comments, strings and names of tests; of others all but code."""
    content = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        yield from _of_python(content)
        return
    if path.suffix == ".toml":
        content = _TOML_CODE.sub(_blank, content)
    if path.suffix == ".md":
        content = _SPAN.sub(_blank, _FENCED.sub(_blank, content))
    yield Text(1, content)


def identifiers_of(path: Path) -> Iterator[Text]:
    """Yield the kind and the words of each identifier that a Python or TOML file defines."""
    content = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        found = ((node, *named) for node in ast.walk(ast.parse(content)) for named in _defined(node))
        for node, kind, name in found:
            yield Text(node.lineno, " ".join([kind, *map(str.lower, _WORD.findall(name))]))
    elif path.suffix == ".toml":
        for match in _TOML_NAME.finditer(content):
            yield Text(content.count("\n", 0, match.start()) + 1, f"name {match[1].replace('-', ' ')}")


def _defined(node: Any) -> Iterator[tuple[str, str]]:
    """Yield (kind, name) of what a node of a syntax tree defines."""
    match node:
        case ast.ClassDef():
            yield "class", node.name
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            yield "function", node.name
        case ast.arg():
            yield "parameter", node.arg
        case ast.Attribute(ctx=ast.Store()):
            yield "attribute", node.attr
        case ast.Name(ctx=ast.Store()):
            yield "constant" if node.id.isupper() else "name", node.id
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            yield "name", name
        case ast.alias(asname=str(name)):
            yield "name", name


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


def findings(path: Path, list_: Entries) -> Iterator[str]:
    """Yield a line for each finding in a file."""
    texts = [(text, list_.words) for text in texts_of(ROOT / path)]
    texts += [(text, list_.identifiers) for text in identifiers_of(ROOT / path)]
    for text, of_kind in texts:
        for entry in (each for each in of_kind if str(path).startswith(each.where)):
            for match in entry.found(text.text):
                line = text.line + text.text.count("\n", 0, match.start())
                words = " ".join(match[0].replace("#", " ").split())
                yield f'{path}:{line}: "{words}": use {entry.use}'


def _tracked(names: list[str]) -> list[Path]:
    out = subprocess.run(["git", "ls-files", "-z", "--", *names], cwd=ROOT, check=True, capture_output=True, text=True)
    found = (Path(name) for name in out.stdout.split("\0") if name)
    return [path for path in found if path.suffix in _CHECKED and path.name != LIST.name and (ROOT / path).exists()]


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
