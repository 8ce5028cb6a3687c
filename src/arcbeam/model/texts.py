"""Texts of strangers: what user code says of itself, made fit for every way out of a process.

Owns three bounds: a text can be encoded (a lone surrogate, as in names of files, would stop PySpark's, gRPC's and
SQLite's senders), it has a length that people can read, and it comes within a time (a `__str__` is user code). Must not
know what is said, nor to whom.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any, TypeVar

LONGEST = 100_000
"""Characters; of a longer text the end and three times as much of the beginning are kept."""

SECONDS = 10.0
"""How long user code may take to describe an exception or an element."""

T = TypeVar("T")


def fit(text: str, longest: int = LONGEST) -> str:
    """The text, encodable as UTF-8 and not much longer than `longest`; what was cut out is counted."""
    left_out = len(text) - longest
    if left_out > 0:
        tail = longest // 4
        text = f"{text[: longest - tail]} … ({left_out} characters left out) … {text[len(text) - tail :]}"
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def slug(text: str, longest: int = 60) -> str:
    """Return a text as a part of a file name: letters, digits, `.`, `_`, `-`; "" if nothing of it is one."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:longest].strip("-.")


def said(speak: Callable[[Any], str], of: Any, longest: int = LONGEST) -> str:
    """What `str`, `repr` or the like says of an object, fit to be handed on; never raises.

    An object that cannot say it, or takes longer than `SECONDS`, is named by its type.
    """
    try:
        return fit(within(SECONDS, lambda: speak(of)), longest)
    except TimeoutError:
        why = f"its text did not come within {SECONDS:g} s"
    except Exception as e:
        why = f"{type(e).__name__} when asked for its text"
    return fit(f"<{type(of).__name__}: {why}>", longest)


def within(seconds: float, call: Callable[[], T]) -> T:
    """What `call` returns, run on a thread of its own.

    Raises:
        TimeoutError: it did not return in time. Its thread is left behind, and ends with the process.
        RuntimeError: it ended by something that is no `Exception`, as `SystemExit`.
        Exception: what it raised.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as e:
            errors.append(e)

    # SUBTLE: user code that holds the interpreter's lock and never lets go stops this, too; nothing within the process
    # could help.
    thread = threading.Thread(target=run, name="described", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no more threads
        return call()
    thread.join(seconds)
    if results:
        return results[0]
    if not errors:
        raise TimeoutError(f"no answer within {seconds:g} s")
    if isinstance(errors[0], Exception):
        raise errors[0]
    raise RuntimeError(f"ended by {type(errors[0]).__name__}")
