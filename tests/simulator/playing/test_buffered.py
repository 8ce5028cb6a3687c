"""User code that writes its state when a call returns."""

from __future__ import annotations

from arcbeam.engine.grouping.groupings import Elements
from arcbeam.engine.task.bundles import BundleResult, CallResult
from arcbeam.testing.views import MemoryView
from simulator.playing.buffered import Buffered, Committing, commits_at_the_end_of_calls


def test_what_is_in_the_buffer_is_read_through_it_and_comes_down_with_a_commit() -> None:
    view = MemoryView({b"a": b"1", b"b": b"2"})
    buffered = Buffered(view)
    buffered.put(b"c", b"3")
    buffered.put(b"a", b"0")
    buffered.delete(b"b")
    assert list(buffered.scan(b"")) == [(b"a", b"0"), (b"c", b"3")]
    assert (buffered.get(b"b"), view.get(b"b"), view.written) == (None, b"2", 0)
    buffered.commit()
    assert view.snapshot() == {b"a": b"0", b"c": b"3"}
    written = view.written
    buffered.commit()
    assert view.written == written


def test_a_call_has_written_when_it_returns_and_the_end_writes_nothing() -> None:
    view = MemoryView()
    writes = Buffered(view)

    class Counting:
        def process(self, key: bytes, elements: Elements) -> CallResult:
            writes.put(key, b"%d" % len(elements))
            assert view.get(key) is None
            return CallResult()

        def finish(self) -> BundleResult:
            return BundleResult()

    runner = Committing(Counting(), writes)  # type: ignore[arg-type]
    runner.process(b"k", ())
    assert view.get(b"k") == b"0"
    written = view.written
    runner.finish()
    assert view.written == written


def test_some_attempts_buffer_and_some_do_not() -> None:
    assert {commits_at_the_end_of_calls(f"t{number}") for number in range(20)} == {True, False}
