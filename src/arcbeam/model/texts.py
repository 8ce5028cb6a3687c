"""Texts from user code, made safe for every output of a process.

Owns three bounds. A text can be encoded: a lone surrogate, as in names of files, would stop the senders of PySpark,
gRPC and SQLite. It has a readable length. It is produced within a time limit, because a `__str__` is user code. And
owns what is escaped on terminals and pages: they obey some characters, and others reorder the words around them. Must
not know the texts, nor their readers.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

CHARACTERS_MAX = 100_000
"""The maximum of characters; of a longer text, the end and three times as much of the beginning are kept."""

SECONDS = 10.0
"""The time limit for user code to describe an exception or an element."""

# Control characters but tabs and ends of lines, marks of the direction of writing, and separators of lines.
_OBEYED: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")

T = TypeVar("T")


def visible(text: str) -> str:
    """Return the text with escapes in place of the characters that a terminal or browser would obey."""
    if _OBEYED.search(text) is None:
        return text
    return _OBEYED.sub(lambda found: repr(found[0])[1:-1], text.replace("\r\n", "\n"))


def fit(text: str, longest: int = CHARACTERS_MAX) -> str:
    """Return the text, encodable as UTF-8 and not much longer than `longest`; the number of omitted characters is
    stated.
    """
    left_out = len(text) - longest
    if left_out > 0:
        tail = longest // 4
        text = f"{text[: longest - tail]} … ({left_out} characters omitted) … {text[len(text) - tail :]}"
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def slug(text: str, longest: int = 60) -> str:
    """Return a text as a part of a file name: letters, digits, `.`, `_`, `-`; "" if it contains none of these."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:longest].strip("-.")


def safe_text(speak: Callable[[Any], str], of: Any, longest: int = CHARACTERS_MAX) -> str:
    """Return the result of `str`, `repr` or the like for an object, made safe; never raises.

    If that fails, or takes longer than `SECONDS`, the result names the object's type.
    """
    try:
        return fit(within(SECONDS, lambda: speak(of)), longest)
    except TimeoutError:
        why = f"its text was not ready within {SECONDS:g} s"
    except Exception as e:
        why = f"{type(e).__name__} while making its text"
    return fit(f"<{type(of).__name__}: {why}>", longest)


def within(seconds: float, call: Callable[[], T]) -> T:
    """Return what `call` returns, run on its own thread.

    Raises:
        TimeoutError: it did not return in time. Its thread continues, and ends with the process.
        RuntimeError: it ended with a `BaseException` that is not an `Exception`, such as `SystemExit`.
        Exception: the exception that it raised.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as e:
            errors.append(e)

    # SUBTLE: user code that holds the interpreter's lock forever stops this, too; nothing within the process could
    # help.
    thread = threading.Thread(target=run, name="described", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no more threads
        return call()
    thread.join(seconds)
    if results:
        return results[0]
    if not errors:
        raise TimeoutError(f"no result within {seconds:g} s")
    if isinstance(errors[0], Exception):
        raise errors[0]
    raise RuntimeError(f"ended by {type(errors[0]).__name__}")
