"""Texts that users see, kept as files that a reviewer reads as a user would.

    ARCBEAM_GOLDEN=update pytest …        writes the files again; read `git diff` afterwards

Each message has a file `tests/golden/messages/ID.txt`. A test that causes a message calls `check_message`. Other
assertions on errors compare types and fields, so that wording can change alone. The help of each command has a file
`tests/golden/help/COMMAND.txt`; its test calls `check_help`. Pictures are files
`tests/golden/pictures/NAME.svg`, for `check_picture`.
"""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path

_MESSAGES = Path(__file__).resolve().parent / "messages"
_HELP = Path(__file__).resolve().parent / "help"
_PICTURES = Path(__file__).resolve().parent / "pictures"
_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_UPDATE = "ARCBEAM_GOLDEN"


def check_message(id: str, text: str, **placeholders: object) -> None:
    """Compare a message with its golden file.

    Args:
        id: of the message: words joined by hyphens. The file has this name.
        text: of the message, as the user sees it.
        placeholders: values that differ between runs. Each is replaced by `{NAME}`, longer ones first. A compiled
            pattern replaces all its matches.

    Raises:
        AssertionError: the text differs, or there is no file.
        ValueError: the id is malformed.
    """
    if not _ID.fullmatch(id):
        raise ValueError(f"message id {id!r}: use lower-case words joined by hyphens")
    _check(_MESSAGES / f"{id}.txt", _with_placeholders(text, placeholders).rstrip("\n") + "\n")


def check_help(command: str, text: str) -> None:
    """Compare the help of a command with its golden file.

    Args:
        command: its name, as in `arcbeam NAME`.
        text: the output of `--help`.

    Raises:
        AssertionError: the text differs, or there is no file.
    """
    _check(_HELP / f"{command}.txt", text)


def check_picture(name: str, svg: str) -> None:
    """Compare an SVG picture with its golden file, which a reviewer opens in a browser.

    Args:
        name: of the picture, without its suffix.
        svg: the picture.

    Raises:
        AssertionError: the picture differs, or there is no file.
    """
    _check(_PICTURES / f"{name}.svg", svg)


def _check(path: Path, shown: str) -> None:
    if os.environ.get(_UPDATE) == "update":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(shown, encoding="utf-8")
        return
    assert path.exists(), f"no golden text {path.name}; write it with {_UPDATE}=update. The text is:\n{shown}"
    golden = path.read_text(encoding="utf-8")
    assert shown == golden, _difference(golden, shown, path.name)


def _with_placeholders(text: str, placeholders: dict[str, object]) -> str:
    patterns = {name: value for name, value in placeholders.items() if isinstance(value, re.Pattern)}
    plain = {name: str(value) for name, value in placeholders.items() if name not in patterns}
    for name, value in sorted(plain.items(), key=lambda item: -len(item[1])):
        text = text.replace(value, f"{{{name}}}")
    for name, pattern in patterns.items():
        text = pattern.sub(f"{{{name}}}", text)
    return text


def _difference(golden: str, shown: str, name: str) -> str:
    lines = difflib.unified_diff(golden.splitlines(), shown.splitlines(), name, "this run", lineterm="")
    return "\n".join([f"{name} differs; if the new text is right: {_UPDATE}=update", *lines])
