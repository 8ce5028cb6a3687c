"""Texts from user code: encodable, bounded, in time."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest

from arcbeam.model import texts


def test_ordinary_text_is_unchanged() -> None:
    assert texts.fit("äöü 日本 \n\0 \N{PILE OF POO}") == "äöü 日本 \n\0 \N{PILE OF POO}"


def test_lone_surrogate_is_escaped() -> None:
    assert texts.fit("bad name \ud800!") == "bad name \\ud800!"
    assert texts.fit("\udcff.txt").encode() == b"\\udcff.txt"


def test_long_text_is_cut_in_the_middle() -> None:
    cut = texts.fit("a" * 1000 + "b" * 1000, 100)
    assert cut == "a" * 75 + " … (1900 characters omitted) … " + "b" * 25


class Mute:
    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __str__(self) -> str:
        raise self._error


@pytest.mark.parametrize("error", [ValueError("\ud800"), SystemExit(3), KeyboardInterrupt(), RecursionError()])
def test_object_without_text_is_named_by_type(error: BaseException) -> None:
    text = texts.safe_text(str, Mute(error))
    assert text.startswith("<Mute: ")
    assert text.encode()


def test_endless_text_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "SECONDS", 0.01)
    never = threading.Event()

    def speak(of: Any) -> str:
        never.wait()
        return "late"

    try:
        assert texts.safe_text(speak, 7) == "<int: its text was not ready within 0.01 s>"
        left = [thread for thread in threading.enumerate() if thread.name == "described"]
        assert all(thread.daemon for thread in left), "it would keep the process from ending"
        assert left
    finally:
        never.set()


def test_within_returns_or_raises_result() -> None:
    assert texts.within(60, lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        texts.within(60, lambda: 1 // 0)
    with pytest.raises(RuntimeError, match="ended by SystemExit"):
        texts.within(60, sys.exit)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\tb\nc", "a\tb\nc"),
        ("a\r\nb", "a\nb"),
        ("a\rb", "a\\rb"),
        ("\x1b[31mred\x07\x00\x7f\x9b", "\\x1b[31mred\\x07\\x00\\x7f\\x9b"),
        ("user \u202egnp.exe\u2066\u061c", "user \\u202egnp.exe\\u2066\\u061c"),
        ("one\u2028line", "one\\u2028line"),
        ("Größe 日本 👩\u200d🚀 שלום", "Größe 日本 👩\u200d🚀 שלום"),
    ],
)
def test_what_a_terminal_obeys_is_escaped(text: str, shown: str) -> None:
    assert texts.visible(text) == shown
