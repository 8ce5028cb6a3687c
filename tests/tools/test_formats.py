"""A stored format does not change without a new version."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, make_dataclass
from enum import IntEnum, StrEnum
from pathlib import Path
from struct import Struct
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from tools.generators import formats
from tools.generators.formats import FORMATS, Format, changed

pytestmark = pytest.mark.contract("STORE-05")


class Mode(StrEnum):
    ON = "on"


class Renumbered(IntEnum):
    ON = 1


class Pair(NamedTuple):
    first: int
    second: str


@dataclass
class Inner:
    mode: Mode
    pair: Pair | None


@dataclass
class Outer:
    name: str
    parts: tuple[Inner, ...]


def module(version: int = 1, form: str = "<Q") -> ModuleType:
    made = ModuleType("arcbeam.some.module")
    vars(made).update(VERSION=version, _FORM=Struct(form))
    return made


def faults(of: Format, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    monkeypatch.setattr(formats, "DESCRIPTIONS", folder)
    monkeypatch.setattr(formats, "FORMATS", (of,))
    return list(changed())


def test_formats_are_as_described() -> None:
    assert list(changed()) == []
    assert len({of.name for of in FORMATS}) == len(FORMATS)
    described = {path.name for path in formats.DESCRIPTIONS.iterdir()}
    assert {of.file.name for of in FORMATS} <= described


CHANGED = {
    "field": (make_dataclass("Outer", [("name", str), ("parts", tuple[Inner, ...]), ("more", int)]), "more: int"),
    "type": (make_dataclass("Outer", [("name", bytes), ("parts", tuple[Inner, ...])]), "name: bytes"),
    "order": (make_dataclass("Outer", [("parts", tuple[Inner, ...]), ("name", str)]), "name: str"),
    "inner": (
        make_dataclass("Outer", [("name", str), ("parts", tuple[make_dataclass("Inner", [("mode", Mode)]), ...])]),  # type: ignore[misc]
        "pair: fields or null",
    ),
}


@pytest.mark.parametrize("how", CHANGED)
def test_changed_class_needs_new_version(how: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    of = Format("some", "somewhere", module(), [Outer])
    (tmp_path / "some-1.txt").write_text(formats.description(of), encoding="utf-8")
    assert faults(of, monkeypatch, tmp_path) == []
    other, line = CHANGED[how]
    (fault,) = faults(of._replace(parts=[other]), monkeypatch, tmp_path)
    assert "'some' has changed, but still has version 1: raise the version in arcbeam.some.module" in fault
    assert line in fault


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (Mode, StrEnum("Mode", {"ON": "on", "OFF": "off"})),
        (Mode, StrEnum("Mode", {"ON": "enabled"})),
        (Renumbered, IntEnum("Renumbered", {"ON": 2})),
        (["token", "time"], ["time", "token"]),
        ({"type": "record", "fields": []}, {"type": "record", "fields": [{"name": "a", "type": "long"}]}),
        ("CREATE TABLE a (b TEXT);", "CREATE TABLE a (b BLOB);"),
    ],
)
def test_changed_part_needs_new_version(
    before: Any, after: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    of = Format("some", "somewhere", module(), [before])
    (tmp_path / "some-1.txt").write_text(formats.description(of), encoding="utf-8")
    assert faults(of, monkeypatch, tmp_path) == []
    assert len(faults(of._replace(parts=[after]), monkeypatch, tmp_path)) == 1


def test_changed_struct_needs_new_version_and_that_a_description(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    of = Format("some", "somewhere", module(), [])
    (tmp_path / "some-1.txt").write_text(formats.description(of), encoding="utf-8")
    (fault,) = faults(of._replace(owner=module(form="<I")), monkeypatch, tmp_path)
    assert "+_FORM = <I" in fault
    (fault,) = faults(of._replace(owner=module(2, "<I")), monkeypatch, tmp_path)
    assert "version 2 without a description" in fault
