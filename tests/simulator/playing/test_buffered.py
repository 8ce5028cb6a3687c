"""User code whose state is written when a call returns."""

from __future__ import annotations

from arcbeam.engine.grouping.groupings import KeyElements
from arcbeam.engine.task.bundles import BundleResult, CallResult
from arcbeam.testing.views import MemoryView
from simulator.playing.buffered import Buffered, Committing, commits_at_the_end_of_calls


def test_reads_see_buffer_and_commit_writes_it() -> None:
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


def test_call_writes_on_return_and_end_writes_nothing() -> None:
    view = MemoryView()
    writes = Buffered(view)

    class Counting:
        def process(self, key: bytes, elements: KeyElements) -> CallResult:
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


def test_only_some_attempts_buffer() -> None:
    assert {commits_at_the_end_of_calls(f"t{number}") for number in range(20)} == {True, False}
