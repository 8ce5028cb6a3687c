"""Lines in lists equal the SDK's lines, for any range and any splits."""

from __future__ import annotations

import gzip
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import apache_beam as beam
import pytest
from apache_beam import coders
from apache_beam.io import iobase, textio
from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.range_trackers import OffsetRangeTracker
from apache_beam.metrics import monitoring_infos as mi
from apache_beam.portability.api import metrics_pb2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from arcbeam.harness.bundle.metrics import merge_metrics
from arcbeam.harness.files import lines, recordlists
from tests.harness.drive import Collect, Driven

TEXT = st.lists(st.sampled_from(["a", "bc", "é", "\n", "\r", "\r\n", "\n\n"]), max_size=12).map("".join)


def source(path: Path, **given: Any) -> Any:
    settings = {"strip_trailing_newlines": True, "coder": coders.StrUtf8Coder(), **given}
    return textio._TextSource(str(path), 0, CompressionTypes.AUTO, validate=False, **settings)


def listed(of: Any, path: Path, tracker: Any) -> list[Any]:
    assert lines.can_read(of)
    return list(itertools.chain.from_iterable(lines.read(of, str(path), tracker)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "some.txt"


@pytest.mark.contract("SDF-07")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=TEXT,
    chunk=st.integers(1, 9),
    cuts=st.lists(st.integers(0, 20), max_size=3),
    strip=st.booleans(),
    skip=st.integers(0, 2),
    coder=st.sampled_from([coders.StrUtf8Coder(), coders.BytesCoder()]),
)
def test_ranges_equal_those_of_sdk(
    path: Path, text: str, chunk: int, cuts: list[int], strip: bool, skip: int, coder: Any
) -> None:
    path.write_bytes(text.encode())
    made = source(path, strip_trailing_newlines=strip, skip_header_lines=skip, coder=coder)
    size = len(text.encode())
    bounds = [0, *sorted(min(cut, size) for cut in cuts), size]
    with mock.patch.object(lines, "_CHUNK", chunk):
        for start, stop in itertools.pairwise(bounds):
            expected = list(made.read_records(str(path), OffsetRangeTracker(start, stop)))
            assert listed(made, path, OffsetRangeTracker(start, stop)) == expected


class Splitting(OffsetRangeTracker):
    """Is split at each access according to a plan: at a number of bytes after the claimed position."""

    def __init__(self, start: int, stop: int, plan: list[int]) -> None:
        super().__init__(start, stop)
        self.plan, self.residuals = list(plan), list[tuple[int, int]]()

    def stop_position(self) -> Any:
        stop = super().stop_position()
        if self.plan and not self._lock.locked():
            behind = self.plan.pop()
            if behind and self.try_split(self._last_record_start + behind):
                self.residuals.append((self._stop_offset, int(stop)))
        return stop


@pytest.mark.contract("SDF-07")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=TEXT, chunk=st.integers(1, 9), plan=st.lists(st.integers(0, 9), max_size=6))
def test_split_at_any_time_is_exact(path: Path, text: str, chunk: int, plan: list[int]) -> None:
    path.write_bytes(text.encode())
    made = source(path)
    size = len(text.encode())
    with mock.patch.object(lines, "_CHUNK", chunk):
        tracker = Splitting(0, size, plan)
        found = listed(made, path, tracker)
        for start, stop in reversed(tracker.residuals):
            found += listed(made, path, OffsetRangeTracker(start, stop))
    assert found == list(made.read_records(str(path), OffsetRangeTracker(0, size)))


def test_invalid_line_fails_after_earlier_lines(path: Path) -> None:
    path.write_bytes(b"one\ntwo\n\xff\nfour\n")
    read = lines.read(source(path), str(path), OffsetRangeTracker(0, 17))
    assert [next(read), next(read)] == [["one"], ["two"]]
    with pytest.raises(UnicodeDecodeError):
        next(read)


def test_compressed_files_are_read_whole(path: Path) -> None:
    path = path.with_suffix(".gz")
    path.write_bytes(gzip.compress(b"one\r\ntwo\nthree"))
    made = source(path)
    assert listed(made, path, OffsetRangeTracker(0, OffsetRangeTracker.OFFSET_INFINITY)) == ["one", "two", "three"]


@pytest.mark.parametrize("special", [{"delimiter": b"|"}, {"escapechar": b"\\"}, {"header_processor_fns": (len, len)}])
def test_special_sources_use_sdk(path: Path, special: dict[str, Any]) -> None:
    assert not lines.can_read(source(path, **special))
    assert not lines.can_read(textio._TextSourceWithFilename("x", 0, "auto", True, coders.BytesCoder(), validate=False))


class Numbers(iobase.BoundedSource):  # type: ignore[misc]  # Beam is untyped
    """Numbers; the third one has its own time."""

    def estimate_size(self) -> int:
        return 10

    def get_range_tracker(self, start: int | None, stop: int | None) -> Any:
        return OffsetRangeTracker(start or 0, 10 if stop is None else stop)

    def split(self, size: int, start: int | None = None, stop: int | None = None) -> Iterator[Any]:
        yield iobase.SourceBundle(10, self, start or 0, 10 if stop is None else stop)

    def read(self, tracker: Any) -> Iterator[Any]:
        for number in range(tracker.start_position(), 10):
            if not tracker.try_claim(number):
                return
            yield beam.window.TimestampedValue(number, 3) if number == 3 else number


@pytest.mark.contract("SDF-07")
@pytest.mark.parametrize("on", [True, False])
def test_other_sources_are_read_in_lists(on: bool, path: Path) -> None:
    path.write_text("one\ntwo\nthree\n")
    with Driven(record_lists=on) as p:
        p | beam.io.Read(Numbers()) | Collect("numbers")
        p | beam.io.ReadFromText(str(path)) | beam.Map(len) | Collect("lines")
    assert sorted(p.values("numbers")) == list(range(10))
    assert [int(time.micros) for value, time, _ in p.windowed("numbers") if value == 3] == [3_000_000]
    assert sorted(p.values("lines")) == [3, 3, 5]
    infos = [metrics_pb2.MonitoringInfo.FromString(m) for m in merge_metrics(m for r in p.reports for m in r.metrics)]
    assert not any(map(recordlists.is_added, infos))
    counts = {
        info.labels[mi.PCOLLECTION_LABEL]: mi.extract_counter_value(info)
        for info in infos
        if info.urn == mi.ELEMENT_COUNT_URN
    }
    assert sorted(counts.values()).count(10) == 1


class Guarded:
    """Cannot be pickled."""

    def __init__(self, number: int) -> None:
        self.number, self.lock = number, threading.Lock()


class GuardedCoder(coders.Coder):  # type: ignore[misc]  # Beam is untyped
    def encode(self, value: Guarded) -> bytes:
        return b"%d" % value.number

    def decode(self, encoded: bytes) -> Guarded:
        return Guarded(int(encoded))

    def is_deterministic(self) -> bool:
        return True


class GuardedNumbers(Numbers):
    def read(self, tracker: Any) -> Iterator[Any]:
        for number in range(tracker.start_position(), 10):
            if not tracker.try_claim(number):
                return
            yield Guarded(number)


@pytest.mark.parametrize("on", [True, False])
def test_records_are_encoded_by_their_coder_only(on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coders.registry, "_coders", dict(coders.registry._coders))
    monkeypatch.setattr(coders.registry, "custom_types", list(coders.registry.custom_types))
    coders.registry.register_coder(Guarded, GuardedCoder)
    with Driven(record_lists=on) as p:
        made = p | beam.io.Read(GuardedNumbers()).with_output_types(Guarded)
        made | beam.Reshuffle() | beam.Map(lambda guarded: guarded.number) | Collect()
    assert sorted(p.values()) == list(range(10))


class Wrong(Numbers):
    """Fails."""

    def read(self, tracker: Any) -> Iterator[Any]:
        yield from itertools.islice(super().read(tracker), 4)
        raise ValueError("no more numbers")


@pytest.mark.contract("BAT-04")
@pytest.mark.parametrize("on", [True, False])
def test_failing_source_names_transform(on: bool) -> None:
    with pytest.raises(ValueError, match=r"no more numbers \[while running 'Read/"), Driven(record_lists=on) as p:
        p | beam.io.Read(Wrong()) | Collect()


@pytest.mark.contract("BAT-04")
@pytest.mark.parametrize("on", [True, False])
def test_failure_after_source_names_its_transform(on: bool) -> None:
    with pytest.raises(ZeroDivisionError, match=r"\[while running 'Over'\]"), Driven(record_lists=on) as p:
        p | beam.io.Read(Numbers()) | "Over" >> beam.Map(lambda number: 1 // (number - 5)) | Collect()


@pytest.mark.parametrize("on", [True, False])
def test_sdk_reader_is_recognized(on: bool, path: Path) -> None:
    path.write_text("one\n")
    added: list[str] = []

    def look(stage: Any) -> None:
        added.extend(id for id in stage.processor.sdk.ops if id.endswith(recordlists._SUFFIX))

    with Driven(record_lists=on, prepare=look) as p:
        p | beam.io.ReadFromText(str(path)) | Collect()
    assert bool(added) is on
