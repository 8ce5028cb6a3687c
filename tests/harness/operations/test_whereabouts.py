"""What a process has recorded about itself is read unchanged, however the process ended."""

from __future__ import annotations

import pytest

from arcbeam.harness.operations.whereabouts import NOWHERE, SIZE, Found, Whereabouts, place_of, read


@pytest.fixture
def memory() -> bytearray:
    return bytearray(SIZE)


@pytest.fixture
def note(memory: bytearray) -> Whereabouts:
    note = Whereabouts()
    note.use(memory)
    note.begin({"attempt": 7, "about": "step 3"})
    return note


def found(memory: bytearray) -> Found:
    found = read(bytes(memory))
    assert found is not None
    return found


def test_innermost_transform_is_recorded_and_restored(note: Whereabouts, memory: bytearray) -> None:
    before = note.enter(place_of("Read"))
    inner = note.enter(place_of("Parse"))
    assert found(memory).place == "Parse"
    note.enter(inner)
    assert found(memory).place == "Read"
    note.enter(before)
    assert found(memory).place == ""
    assert found(memory).task == {"attempt": 7, "about": "step 3"}
    assert found(memory).running


def test_sample_counts_only_within_same_transform(note: Whereabouts, memory: bytearray) -> None:
    note.enter(place_of("Chain"))
    note.sample("Parse", 123)
    assert (found(memory).sampled, found(memory).memory) == ("Parse", 123)
    note.enter(place_of("Write"))
    assert (found(memory).sampled, found(memory).place) == ("", "Write")


def test_exit_code_keeps_memory(note: Whereabouts, memory: bytearray) -> None:
    note.sample("Parse", 123)
    note.record_exit("Write", -7)
    assert (found(memory).left, found(memory).code, found(memory).memory) == ("Write", -7, 123)


def test_next_task_begins_with_empty_note(note: Whereabouts, memory: bytearray) -> None:
    note.enter(place_of("Parse"))
    note.sample("Parse", 9)
    note.end()
    assert not found(memory).running
    note.begin({"attempt": 8})
    assert found(memory) == Found(True, {"attempt": 8}, "", "", "", 0, 0)


@pytest.mark.parametrize("name", ["ä" * 500, "x" * 500, "\ud800"])
def test_any_name_fits(note: Whereabouts, memory: bytearray, name: str) -> None:
    assert len(place_of(name)) == len(NOWHERE)
    note.enter(place_of(name))
    assert found(memory).place


@pytest.mark.parametrize("data", [b"", b"x" * SIZE, b"\0" * SIZE])
def test_invalid_note_is_none(data: bytes) -> None:
    assert read(data) is None
