"""Writing files block by block: text and Avro records, rows for Parquet files, and part files.

Owns two operations that replace DoFns of the SDK which take single elements. Each keeps the SDK's DoFn, and leaves to
it all but the common case: the first element, which opens a file; full buffers; failures. The SDK decides which file is
written. A contract test covers its internals that this module relies on. A third operation is for DoFns of arcbeam that
take lists (`arcbeam.model.dofns`), such as those of part files.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

from apache_beam.coders.coders import ToBytesCoder
from apache_beam.io import avroio, filebasedsink, iobase, parquetio, textio
from apache_beam.runners.worker import operations

from arcbeam.harness.encoding.blocks import Block, Each
from arcbeam.harness.operations.blockoperation import BlockOperation, dofn_runner
from arcbeam.harness.transforms.values import ExtraArguments
from arcbeam.model.dofns import TakesLists


class _CollectingOperation(BlockOperation):
    """A DoFn that collects elements and has few outputs. The SDK's runner calls its lifecycle methods."""

    def __init__(self, name: Any, spec: Any, factory: Any, input_coder: Any, fn: Any, given: ExtraArguments) -> None:
        super().__init__(name, spec, factory, input_coder)
        self._fn: Any = fn
        self._given = given

    def setup(self, data_sampler: Any = None) -> None:
        """See the SDK's `Operation`."""
        with self.scoped_start_state:
            super().setup(data_sampler)
            receivers = operations._TaggedReceivers(self.counter_factory, self.name_context.logging_name())
            receivers[None] = receivers[self.spec.output_tags[0]] = self.receivers[0]
            given = self._given
            self._runner = dofn_runner(
                self, self._fn, given.args, given.kwargs, given.sides, given.windowing, receivers
            )
            self._runner.setup()

    def start(self) -> None:
        """See the SDK's `Operation`."""
        with self.scoped_start_state:
            super().start()
            self._runner.start()

    def finish(self) -> None:
        """See the SDK's `Operation`."""
        super().finish()
        with self.scoped_finish_state:
            self._runner.finish()

    def teardown(self) -> None:
        """See the SDK's `Operation`."""
        with self.scoped_finish_state:
            self._runner.teardown()

    def reset(self) -> None:
        """See the SDK's `Operation`."""
        super().reset()
        for side in self._given.sides:
            side.reset()


class _Collecting(_CollectingOperation):
    """A DoFn of the SDK, which processes the elements that this operation leaves to it."""

    def _take(self, block: Block) -> None:
        with self.scoped_process_state:
            process, place, count = self._runner.process, 0, len(block)
            while place < count:
                try:
                    taken = self._collect(block, place)
                except _Unfit:
                    # The SDK's DoFn reports errors, if there are any.
                    for element in block.slice(place, None).elements():
                        process(element)
                    return
                if not taken:
                    process(block.element(place))
                place += taken or 1

    @abstractmethod
    def _collect(self, block: Block, place: int) -> int:
        """Take elements of a block, from a place on. Return how many; 0 if the SDK's DoFn must process the next one.

        Raises:
            _Unfit: nothing was taken, and the SDK's DoFn must process all.
        """


class _Unfit(Exception):
    """Raised for elements that are not of the common form."""


class SinkOperation(_Collecting):
    """Writes records to a file of text or Avro, which the first record of a bundle opens."""

    @staticmethod
    def takes(fn: Any) -> bool:
        """Return whether this operation can replace a DoFn's."""
        if type(fn) is not iobase._WriteBundleDoFn:
            return False
        sink = fn.sink
        # With a limit of the file size, the SDK checks it after each record.
        return type(sink) in (textio._TextSink, avroio._FastAvroSink) and not (
            sink.max_records_per_shard or sink.max_bytes_per_shard
        )

    def _collect(self, block: Block, place: int) -> int:
        writer: Any = self._fn.writer
        if type(writer) is not filebasedsink.FileBasedSinkWriter:
            return 0
        values = block.values[place:]
        if type(self._fn.sink) is textio._TextSink:
            values = [self._text(values)]
        write = writer.temp_handle.write
        try:
            for value in values:
                write(value)
        except BaseException as e:
            self._runner._reraise_augmented(e)
        taken = len(block) - place
        writer.num_records_written += taken
        return taken

    def _text(self, values: list[Any]) -> bytes:
        """Encode lines."""
        sink = self._fn.sink
        end = "\n" if sink._append_trailing_newlines else ""
        try:
            if type(sink.coder) is ToBytesCoder and set(map(type, values)) == {str}:
                return (end.join(values) + end).encode()
            encoded = list(map(sink.coder.encode, values))
        except Exception as e:
            raise _Unfit from e
        return end.encode().join([*encoded, b""])


class TableOperation(_Collecting):
    """Builds Arrow tables from rows that are dictionaries."""

    @staticmethod
    def takes(fn: Any) -> bool:
        """Return whether this operation can replace a DoFn's."""
        return type(fn) is parquetio._RowDictionariesToArrowTable and bool(fn._schema.names)

    def _collect(self, block: Block, place: int) -> int:
        fn = self._fn
        room = fn._buffer_size - len(fn._buffer[0])
        windows = block.windows
        if room <= 0 or fn._record_batches_byte_size >= fn._row_group_buffer_size:
            return 0
        rows = block.values[place : place + room]
        if type(windows) is Each or len(windows) != 1 or set(map(type, rows)) != {dict}:
            raise _Unfit
        try:
            columns = [
                [row.get(field.name) for row in rows] if field.nullable else [row[field.name] for row in rows]
                for field in fn._schema
            ]
        except Exception as e:
            raise _Unfit from e
        fn._window = windows[0]
        for buffer, column in zip(fn._buffer, columns, strict=True):
            buffer += column
        return len(rows)


class ListOperation(_CollectingOperation):
    """A DoFn that takes lists of values in the same window."""

    @staticmethod
    def takes(fn: Any) -> bool:
        """Return whether this operation can replace a DoFn's."""
        return isinstance(fn, TakesLists)

    def _take(self, block: Block) -> None:
        with self.scoped_process_state:
            for values, windows in _by_windows(block):
                for window in windows:
                    try:
                        out = list(self._fn.take(values, window))
                    except BaseException as e:
                        self._runner._reraise_augmented(e)
                    for each in out:
                        self.output(each)


def _by_windows(block: Block) -> Iterator[tuple[list[Any], tuple[Any, ...]]]:
    """Yield the values of a block by their windows, with these."""
    if type(block.windows) is not Each:
        yield block.values, block.windows
        return
    # Equal windows are usually the same object, and the same as those of the previous element.
    found: dict[int, tuple[list[Any], tuple[Any, ...]]] = {}
    before: Any = None
    for value, windows in zip(block.values, block.windows, strict=True):
        if windows is not before:
            before = windows
            values, _ = found.setdefault(id(windows), ([], windows))
        values.append(value)
    equal: dict[tuple[Any, ...], list[Any]] = {}
    for values, windows in found.values():
        if windows in equal:
            equal[windows] += values
        else:
            equal[windows] = values
    for windows, values in equal.items():
        yield values, windows


def operation_for(fn: Any) -> type[_CollectingOperation] | None:
    """Return the operation that replaces a DoFn's; None if there is none."""
    return next((kind for kind in (SinkOperation, TableOperation, ListOperation) if kind.takes(fn)), None)
