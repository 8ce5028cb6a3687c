"""Each fault of the unreliable store is the one that was asked for, and leaves what it says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from arcbeam.store.blobs.errors import DeterminateError, IndeterminateError
from arcbeam.testing.blobs import MemoryBlobs
from arcbeam.testing.faults import NONE, Faults, UnreliableBlobs


@pytest.mark.parametrize(
    ("faults", "error", "stored", "settled"),
    [
        (Faults(refused=1.0), DeterminateError, False, False),
        (Faults(lost=1.0), IndeterminateError, False, False),
        (Faults(silent=1.0), IndeterminateError, True, True),
        (Faults(late=1.0), IndeterminateError, False, True),
        (Faults(repeated=1.0), None, True, True),
        (NONE, None, True, True),
    ],
    ids=["refused", "lost", "silent", "late", "repeated", "none"],
)
def test_write_has_the_outcome_of_its_fault(
    faults: Faults, error: type[Exception] | None, stored: bool, settled: bool, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    writes: list[Callable[[UnreliableBlobs], object]] = [
        lambda blobs: blobs.put("a/x", b"1"),
        lambda blobs: blobs.put_file("a/x", path),
        lambda blobs: blobs.create("a/x", b"1"),
    ]
    for write in writes:
        path.write_bytes(b"1")
        blobs = UnreliableBlobs(inner := MemoryBlobs(), 1, faults)
        if error is None:
            write(blobs)
        else:
            with pytest.raises(error, match="'a/x'"):
                write(blobs)
        path.unlink(missing_ok=True)
        assert inner.data == ({"a/x": b"1"} if stored else {})
        blobs.settle()
        assert inner.data == ({"a/x": b"1"} if settled else {})


def test_repeated_create_finds_its_own_bytes() -> None:
    assert UnreliableBlobs(MemoryBlobs(), 1).create("a/x", b"1")
    assert not UnreliableBlobs(MemoryBlobs(), 1, Faults(repeated=1.0)).create("a/x", b"1")


def test_outcomes_have_their_probabilities() -> None:
    expected = {"refused": 0.1, "lost": 0.15, "silent": 0.2, "late": 0.25, "repeated": 0.1, "done": 0.2}
    blobs = UnreliableBlobs(MemoryBlobs(), 1, Faults(**{name: p for name, p in expected.items() if name != "done"}))
    for _ in range(2000):
        try:
            blobs.put("a/x", b"")
        except (DeterminateError, IndeterminateError):
            continue
    counts = Counter(call.rpartition(": ")[2] for call in blobs.calls)
    assert {name: count / 2000 for name, count in counts.items()} == pytest.approx(expected, abs=0.03)


def test_default_store_has_no_fault() -> None:
    blobs = UnreliableBlobs(MemoryBlobs(), 1)
    for i in range(100):
        blobs.put(f"a/{i:02}", b"x")
        assert [info.name for info in blobs.list("a")] == [f"a/{j:02}" for j in range(i + 1)]
        assert blobs.get(f"a/{i:02}") == blobs.get_range(f"a/{i:02}", 0, 9) == b"x"


@pytest.mark.parametrize("fault", ["silent", "late"])
def test_same_seed_gives_same_faults(fault: str) -> None:
    def event_log(seed: int) -> list[str]:
        blobs = UnreliableBlobs(MemoryBlobs(), 0, Faults(**{fault: 0.5}))
        blobs.reseed(seed)
        for i in range(40):
            try:
                blobs.put(f"a/{i}", b"")
            except IndeterminateError:
                continue
        return blobs.calls

    assert event_log(3) == event_log(3) != event_log(4)


@pytest.mark.parametrize(
    "read",
    [
        lambda blobs: blobs.get("a/x"),
        lambda blobs: blobs.get_range("a/x", 0, 1),
        lambda blobs: list(blobs.list("a")),
    ],
    ids=["get", "get_range", "list"],
)
def test_unread_call_gets_no_answer(read: Callable[[UnreliableBlobs], object]) -> None:
    blobs = UnreliableBlobs(MemoryBlobs(), 1, Faults(unread=1.0))
    blobs.put("a/x", b"1")
    with pytest.raises(IndeterminateError, match="'a"):
        read(blobs)


def test_late_writes_settle_in_their_order() -> None:
    blobs = UnreliableBlobs(inner := MemoryBlobs(), 1, Faults(late=1.0, landing=0.0))
    for data in (b"1", b"2", b"3"):
        with pytest.raises(IndeterminateError):
            blobs.put("a/x", data)
    blobs.settle()
    assert (inner.data, blobs.late) == ({"a/x": b"3"}, [])


def test_late_writes_land_before_another_call() -> None:
    blobs = UnreliableBlobs(inner := MemoryBlobs(), 1, Faults(late=1.0, landing=1.0))
    other = UnreliableBlobs(inner, 2, Faults(landing=1.0), beside=blobs)
    for i in range(3):
        with pytest.raises(IndeterminateError):
            blobs.put(f"a/{i}", b"")
        assert len(inner.data) == i
    assert [info.name for info in other.list("a")] == ["a/0", "a/1", "a/2"]


def test_stale_listing_omits_up_to_eight_of_the_latest_names() -> None:
    blobs = UnreliableBlobs(inner := MemoryBlobs(), 1)
    names = [f"a/{i:02}" for i in range(20)]
    for name in names:
        blobs.put(name, b"")
    listed = UnreliableBlobs(inner, 2, Faults(stale=1.0), beside=blobs)
    seen = [[info.name for info in listed.list("a")] for _ in range(100)]
    assert {len(names) - len(each) for each in seen} == set(range(1, 9))
    assert all(each == names[: len(each)] for each in seen)


def test_stale_listing_may_contain_deleted_names() -> None:
    blobs = UnreliableBlobs(MemoryBlobs(), 1)
    for name in ("a/1", "a/2", "b/1"):
        blobs.put(name, b"xyz")
    for name in ("a/1", "a/2", "b/1", "a/missing"):
        blobs.delete(name)
    blobs.faults = Faults(stale=1.0)
    seen = [[(info.name, info.size) for info in blobs.list("a")] for _ in range(50)]
    assert {name for each in seen for name in each} == {("a/1", 3), ("a/2", 3)}
    assert all(each == sorted(each) for each in seen)
    assert {info.name for _ in range(50) for info in blobs.list("a", after="a/1")} == {"a/2"}


def test_interruption_comes_before_its_call() -> None:
    blobs = UnreliableBlobs(MemoryBlobs(), 1)
    heard: list[list[str]] = []
    blobs.interrupt(0, lambda: heard.append(list(blobs.calls)))
    blobs.interrupt(2, lambda: heard.append(list(blobs.calls)))
    for name in "abc":
        blobs.put(name, b"")
    assert heard == [[], ["put a: done", "put b: done"]]
    blobs.interrupt(1, lambda: 1 // 0)
    blobs.get("a")
    with pytest.raises(ZeroDivisionError):
        blobs.get("a")
    blobs.get("a")
