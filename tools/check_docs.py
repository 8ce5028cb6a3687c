"""Checks rules of the documents that no other tool checks: length, links, commands and options.

- The pages for developers have at most MAX_WORDS words together, without generated lists. Pages for users have no
  limit: each begins with an example, and explains in whole sentences.
- Every relative link leads to a file, and its anchor to a heading.
- mkdocs.yml lists every page, except single decisions.
- Every `arcbeam COMMAND` in code exists; on pages for users so does every option.
- Code in a table has no escaped bar.

`make site` checks links, too, but needs further packages. Violations are printed as `path:line: what`; the exit code is
1 if there is any. `--words` prints the number of words of each page.
"""

from __future__ import annotations

import argparse
import re
import sys
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
NAV = ROOT / "mkdocs.yml"
BESIDE = tuple(
    ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "examples/README.md")
)
"""Pages outside of the site whose links are checked, too."""
MAX_WORDS = 13_000
MAX_README = 900
_OF_DEVELOPERS = DOCS / "developers"
_NOT_COUNTED = (_OF_DEVELOPERS / "mutants.md", _OF_DEVELOPERS / "packages.md")
"""Generated lists: they are searched, not read."""

_FENCE = re.compile(r"^\s*(```|~~~)")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)[^)]*\)")
_HEADING = re.compile(r"^#{1,6} (.+?)\s*#*$")
_SPAN = re.compile(r"`([^`]+)`")
_COMMAND = re.compile(r"(?:^|[\s/(])(?<!from )arcbeam ([a-z][a-z-]*)\b")
_OPTION = re.compile(r"(?:^|[\s`(\[])(--[A-Za-z][\w-]*)")
_ELSEWHERE = re.compile(
    r"(^|\s)(make|pip|python3?|mkdir|setfacl|ssh|kill|docker|java|kubectl|systemctl|spark-submit|venv-pack|\./wordcount"
    r"|aws|databricks)\s"
)
"""Command lines of other programs, whose options are not checked."""
_PASSING = ("run", "resume", "serve", "explain", "parts")
"""Commands that take pipeline options."""
_OF_SCRIPTS = ("--input", "--output", "--messages", "--runner")
"""Options of the examples' scripts."""
_OF_SDKS = ("--worker_binary", "--container_executable", "--worker_pool", "--alsoStartLoopbackWorker")
"""Options of Beam's Go SDK, of its worker pool, and of Java's expansion service."""


@dataclass(slots=True)
class Page:
    """A page.

    Attributes:
        lines: of text, by number; code blocks are empty here.
        code: lines of code blocks and code spans, with their numbers.
        anchors: of its headings.
        words: their number, without comments.
    """

    lines: dict[int, str] = field(default_factory=dict)
    code: list[tuple[int, str]] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)
    words: int = 0


def page_of(text: str) -> Page:
    """Parse a page. In a code block, a command is one line, also where a backslash continues it."""
    page = Page(words=words_of(text))
    fenced, begun = False, ""
    for number, line in enumerate(text.splitlines(), 1):
        if _FENCE.match(line):
            fenced, begun = not fenced, ""
        elif fenced and line.endswith("\\"):
            begun += line.removesuffix("\\")
        elif fenced:
            page.code.append((number, begun + line))
            begun = ""
        else:
            page.lines[number] = line
            page.code += [(number, span) for span in _SPAN.findall(line)]
            if heading := _HEADING.match(line):
                page.anchors.add(_slug(heading.group(1), page.anchors))
    return page


def words_of(text: str) -> int:
    """Return the number of words: texts between blanks with a letter or digit; comments do not count."""
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    return sum(any(c.isalnum() for c in word) for word in text.split())


def _slug(heading: str, taken: Collection[str]) -> str:
    """Return the anchor that the site gives a heading."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
    ascii = unicodedata.normalize("NFKD", plain).encode("ascii", "ignore").decode()
    slug = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", ascii).strip().lower())
    made, count = slug, 0
    while made in taken:
        count += 1
        made = f"{slug}_{count}"
    return made


def broken_links(path: Path, page: Page, pages: Mapping[Path, Page]) -> Iterator[tuple[int, str]]:
    """Yield broken links, with their lines."""
    for number, line in page.lines.items():
        for link in _LINK.findall(_SPAN.sub("", line)):
            if re.match(r"[a-z]+:", link):
                continue
            name, _, anchor = link.partition("#")
            target = (path.parent / name).resolve() if name else path
            if not target.exists():
                yield number, f"the link {link} leads to no file"
            elif anchor and target in pages and anchor not in pages[target].anchors:
                yield number, f"the link {link} leads to no heading"


@dataclass(frozen=True, slots=True)
class Known:
    """The existing commands and options.

    Attributes:
        commands: options of each command, by its name.
        pipeline: pipeline options of arcbeam and the SDK.
    """

    commands: Mapping[str, Collection[str]]
    pipeline: Collection[str]


def unknown_names(page: Page, known: Known, *, options: bool) -> Iterator[tuple[int, str]]:
    """Yield missing commands, and with `options` missing options, with their lines."""
    every = {name for names in known.commands.values() for name in names} | set(known.pipeline) | set(_OF_SDKS)
    for number, code in page.code:
        code = code.partition(" # ")[0]
        command = found.group(1) if (found := _COMMAND.search(code)) else None
        if command and command not in known.commands:
            yield number, f"there is no command `arcbeam {command}`"
        elif options and not (_ELSEWHERE.search(code) and not command):
            allowed = every
            if command:
                allowed = {*known.commands[command], *(known.pipeline if command in _PASSING else ()), *_OF_SCRIPTS}
            for option in _OPTION.findall(code):
                if _plain(option) not in set(map(_plain, allowed)):
                    of = f" of `arcbeam {command}`" if command else ""
                    yield number, f"there is no option {option}{of}"


def _plain(option: str) -> str:
    return option.replace("_", "-").rstrip("-")


def shown_backslashes(page: Page) -> Iterator[tuple[int, str]]:
    """Yield code in tables whose bar is escaped, with its lines: the site shows the backslash, too."""
    for number, line in page.lines.items():
        if any("\\|" in span for span in _SPAN.findall(line)):
            yield number, "code with an escaped bar in a table: the backslash is visible; reword it"


def known() -> Known:
    """Return the commands and options of this source tree."""
    from apache_beam.options.pipeline_options import PipelineOptions

    from arcbeam import options as arcbeam_options  # its view registers its options
    from tools.reference import commands

    of = {
        name: {o for each in command.params for o in each.opts} | {"--help", "--json"} for name, command in commands()
    }
    view = PipelineOptions([]).view_as(arcbeam_options.ArcbeamOptions)
    return Known(of, {f"--{name}" for name in view.get_all_options()} | {"--extra_package", "--version"})


def not_in_nav(nav: str, pages: Collection[str]) -> Iterator[str]:
    """Yield pages in the site's navigation that do not exist, and existing pages that it lacks.

    Args:
        nav: the text of mkdocs.yml.
        pages: paths below docs/.
    """
    named = set(re.findall(r"^ +- .*?([\w./-]+\.md)$", nav, re.MULTILINE))
    yield from (f"there is no page {name}" for name in sorted(named - set(pages)))
    for name in sorted(set(pages) - named):
        if not name.startswith("developers/decisions/"):
            yield f"the page {name} is not in the navigation"


def violations(paths: Iterable[Path], known: Known) -> Iterator[str]:
    """Yield all violations, as `path:line: what`."""
    pages = {path: page_of(path.read_text(encoding="utf-8")) for path in paths}
    for path, page in pages.items():
        of_users = path.is_relative_to(DOCS) and not path.is_relative_to(_OF_DEVELOPERS)
        found = [
            *broken_links(path, page, pages),
            *unknown_names(page, known, options=of_users or path == ROOT / "README.md"),
            *shown_backslashes(page),
        ]
        yield from (f"{path.relative_to(ROOT)}:{number}: {what}" for number, what in sorted(found))
    total = sum(
        page.words for path, page in pages.items() if path.is_relative_to(_OF_DEVELOPERS) and path not in _NOT_COUNTED
    )
    if total > MAX_WORDS:
        yield f"docs/developers: {total} words; {MAX_WORDS} is the limit (--words shows each page)"
    readme = pages[ROOT / "README.md"].words
    if readme > MAX_README:
        yield f"README.md: {readme} words; {MAX_README} is the limit"


def main(arguments: list[str]) -> int:
    """Print violations, or the number of words of each page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--words", action="store_true", help="print how many words each page has")
    options = parser.parse_args(arguments)
    of_site = sorted(DOCS.rglob("*.md"))
    paths = [*of_site, *BESIDE]
    if options.words:
        for path in paths:
            print(f"{words_of(path.read_text(encoding='utf-8')):6d} {path.relative_to(ROOT)}")
        return 0
    found = [
        *violations(paths, known()),
        *(f"{NAV.name}: {what}" for what in not_in_nav(NAV.read_text(), [str(p.relative_to(DOCS)) for p in of_site])),
    ]
    for violation in found:
        print(violation, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
