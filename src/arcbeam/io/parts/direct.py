"""Part files of a bounded input that are written by the tasks that have the records: no record travels.

Owns the DoFn that writes, and the DoFn that numbers the files. A task has one open file for each window and
destination, limited in number and memory. Each file is a part. Files are numbered when all tasks have ended, in the
order of the tasks. So names do not depend on which task was first. On an object store a name must be known when its
upload is created. There the shard is the place of the task, and numbers have gaps.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

import apache_beam as beam
from apache_beam.utils.windowed_value import WindowedValue
from typing_extensions import override

from arcbeam.io.parts.naming import Span, check_destination
from arcbeam.io.parts.spans import span_of
from arcbeam.io.parts.successes import success_of
from arcbeam.io.parts.work import PartFile, PartWriter, Plain, Work
from arcbeam.io.publishing import attempt
from arcbeam.model.dofns import TakesLists
from arcbeam.sizes import threshold

_OPEN_FILES_MAX: Final = threshold(100)
"""Files that a task has open concurrently. For another one, the least recently written file is closed."""
_HELD_BYTES_MAX: Final = threshold(128 << 20)
"""Bytes that they hold in memory: of an upload the unsent piece, of Parquet the row group. Beyond it the file that
holds most is closed. A single file holds what its format and `Roll` require."""

Destination = Callable[[Any], str]
Of = tuple[Span, str]


class _Numbers:
    """Counts the parts that an attempt has started in this process, by kind. An attempt may run several bundles."""

    token: str | None = None
    begun: dict[Any, int]

    def next(self, token: str, of: Any) -> int:
        if token != self.token:
            self.token, self.begun = token, {}
        number = self.begun.get(of, 0)
        self.begun[of] = number + 1
        return number


_numbers = _Numbers()


class WriteHere(beam.DoFn, TakesLists):  # type: ignore[misc]  # Beam is untyped
    """Writes records into parts. When the bundle ends, emits ((span, destination), part file) as plain values.

    Args:
        work: what is written.
        destination: returns the destination of a record; None: there are no destinations.
        coder: coder of the windows.
    """

    def __init__(self, work: Work, destination: Destination | None, coder: Any) -> None:
        self._work, self._destination, self._coder = work, destination, coder
        self._open: OrderedDict[Of, tuple[PartWriter, Any]] = OrderedDict()
        self._held = 0
        self._done: list[tuple[PartFile, Any]] = []

    @override
    def setup(self) -> None:
        self._staging = self._work.staging()

    def start_bundle(self) -> None:
        """Discard what a failed bundle has left."""
        for writer, _ in self._open.values():
            writer.abandon()
        self._open.clear()
        self._held = 0
        self._done = []

    @override
    def process(self, element: Any, window: Any = beam.DoFn.WindowParam) -> Iterable[Any]:
        return self.take([element], window)

    @override
    def take(self, values: list[Any], window: Any) -> Iterable[Any]:
        span = span_of(window, self._coder)
        if self._destination is None:
            self._write(span, "", window, values)
            return ()
        by_destination = defaultdict(list)
        for record in values:
            by_destination[self._destination(record)].append(record)
        for destination, records in by_destination.items():
            self._write(span, destination, window, records)
        return ()

    def _write(self, span: Span, destination: str, window: Any, records: list[Any]) -> None:
        roll, of, place = self._work.roll, (span, destination), 0
        while place < len(records):
            writer = self._writer(of, window)
            some = len(records) - place
            if roll.elements is not None:
                some = min(some, roll.elements - writer.records)
            if roll.bytes is not None:
                # As many records as should fill the part, judged by earlier ones. Without earlier ones: a single
                # record.
                before = writer.records
                some = min(some, 1 + (roll.bytes - writer.taken) * before // max(1, writer.taken) if before else 1)
            held = writer.held
            writer.add_records(records if some == len(records) else records[place : place + some])
            self._held += writer.held - held
            place += some
            if writer.records == roll.elements or (roll.bytes is not None and writer.taken >= roll.bytes):
                self._finish(of)
            while self._held > _HELD_BYTES_MAX and len(self._open) > 1:
                self._finish(max(self._open, key=lambda each: self._open[each][0].held))

    def _writer(self, of: Of, window: Any) -> PartWriter:
        found = self._open.get(of)
        if found is not None:
            self._open.move_to_end(of)
            return found[0]
        if self._destination is not None:
            check_destination(of[1])
        if len(self._open) == _OPEN_FILES_MAX:
            self._finish(next(iter(self._open)))
        now = attempt()
        number = _numbers.next(now.token, (self._work.path, self._work.template.text, of))
        # In a streaming job a file is published with the micro-batch that wrote it. It cannot wait for the others to be
        # numbered.
        named = self._staging.names_first or now.micro_batch > 0
        shard = (now.micro_batch, *now.order) if now.micro_batch else now.order
        writer = PartWriter(self._work, self._staging, now, *of, shard, number, named=named)
        self._open[of] = writer, window
        self._held += writer.held
        return writer

    def _finish(self, of: Of) -> None:
        writer, window = self._open.pop(of)
        self._held -= writer.held
        self._done.append((writer.finish(), window))

    def finish_bundle(self) -> Iterator[Any]:
        """Close all open files, and emit their parts."""
        for of in list(self._open):
            self._finish(of)
        done, self._done = self._done, []
        for file, window in done:
            yield WindowedValue((key_of(file), file.plain()), window.max_timestamp(), (window,))

    @override
    def teardown(self) -> None:
        for writer, _ in self._open.values():
            writer.abandon()
        self._open.clear()


def key_of(file: PartFile) -> str:
    """Return a key that is the same for all files of a window and destination."""
    span = file.span
    return f"{span.start}|{span.end}|{span.mark}|{file.destination}"


class Number(beam.DoFn):  # type: ignore[misc]  # Beam is untyped
    """Takes (key, part files), with all files of a window and destination, and emits the files with their names.

    Files that a streaming job wrote are already published, and are not emitted again.

    Args:
        work: what is written.
        success: the name of success files; "": none are written.
    """

    SUCCESS = "success"
    """The tag of the committable that publishes the files together with the success file."""

    def __init__(self, work: Work, success: str) -> None:
        self._work, self._success = work, success

    def process(self, element: tuple[str, Iterable[Plain]]) -> Iterator[Any]:
        """Number the files of a window and destination."""
        files, micro_batch = numbered(self._work, element[1]), attempt().micro_batch
        for file in files:
            if not file.micro_batch:
                yield file.plain()
        if self._success or not micro_batch:
            # Without micro-batches, all files of a window arrive together and replace those of earlier runs.
            own = [file for file in files if file.micro_batch == micro_batch]
            yield beam.pvalue.TaggedOutput(self.SUCCESS, success_of(self._success, files, own))


def numbered(work: Work, plains: Iterable[Plain]) -> list[PartFile]:
    """Return the files of a window and destination in the order of their tasks. Files without a name get one.

    Raises:
        RuntimeError: two files have the same name, because the order of the tasks is not unique.
    """
    files = sorted(map(PartFile.of, plains), key=lambda file: (file.shard, file.token, file.part))
    if all(file.staged.name for file in files):
        names = [file.staged.name for file in files]
        twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
        if twice:
            raise RuntimeError(f"two tasks have written {twice[0]}; set WriteParts(shards=…) to avoid this")
        return files
    shards: dict[tuple[Any, ...], int] = {}
    parts: dict[int, int] = {}
    out = []
    for file in files:
        shard = shards.setdefault((file.shard, file.token), len(shards))
        part = parts[shard] = parts.get(shard, -1) + 1
        name = work.name(file.span, file.destination, (shard,), part)
        out.append(replace(file, staged=replace(file.staged, name=name), shard=(shard,), part=part))
    return out
