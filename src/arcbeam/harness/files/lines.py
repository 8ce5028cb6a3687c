"""Lines of text files, many at a time.

Owns a reader that gives what the SDK's text source gives for a range of a file, as lists of records: lines are split,
decoded and claimed a chunk at once. The SDK's internals that are leaned on are held by a contract test.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from apache_beam import coders
from apache_beam.io import textio
from apache_beam.io.iobase import RangeTracker

from arcbeam.sizes import threshold

_CHUNK = threshold(1 << 17, 7)
"""Bytes that are read at once; a line may be longer."""


def can_read(source: Any) -> bool:
    """Whether `read` gives the records of a source of the SDK's, which must be one of text without anything special."""
    return (
        type(source) is textio._TextSource
        and source._delimiter is None
        and source._escapechar is None
        and source._header_matcher is None
    )


def read(source: Any, file_name: str, tracker: Any) -> Iterator[list[Any]]:
    """The records of a file whose lines begin within the tracker's range, in order, as lists.

    The range may be split at any time, from any thread: what was given out by then stays within it.

    Args:
        source: one that `can_read`.
        file_name: of the file.
        tracker: an offset range tracker, fresh.
    """
    with source.open_file(file_name) as file:
        chunks = _Chunks(file)
        for _ in range(source._skip_header_lines):
            chunks.skip_line()
        start = tracker.start_position()
        if start > chunks.position:
            # A line that begins at the start is within the range: the byte before it ends another.
            chunks.seek(start - 1)
            if not chunks.skip_line():
                return
        records = _Records(source)
        tracker.set_split_points_unclaimed_callback(
            lambda stop: 0 if stop <= chunks.position else RangeTracker.SPLIT_POINTS_UNKNOWN
        )
        while lines := chunks.next_lines():
            position = chunks.lines_start
            claimed = _claim(tracker, position, lines)
            yield from records.of(lines[:claimed])
            if claimed < len(lines):
                return


def _claim(tracker: Any, position: int, lines: list[bytes]) -> int:
    """Claims lines that follow each other.

    Args:
        tracker: of the range.
        position: of the first line.
        lines: with their ends.

    Returns:
        How many of them begin within the range: they are claimed, and a split can no longer take them.
    """
    last = position + sum(map(len, lines)) - len(lines[-1])
    if last < tracker.stop_position():
        if tracker.try_claim(last):
            return len(lines)
        # A split has come in between, so something was claimed before. A refused claim cannot be made again for less:
        # the position is set instead.
    elif not tracker.try_claim(position):
        return 0
    starts = list(accumulate(map(len, lines[:-1]), initial=position))
    while count := bisect_left(starts, tracker.stop_position()):
        tracker.set_current_position(starts[count - 1])
        # SUBTLE: what is set cannot be split off any more, but it may have been just before.
        if starts[count - 1] < tracker.stop_position():
            break
    return count


class _Chunks:
    """Whole lines of a file, as many at a time as were read at once.

    Attributes:
        position: in the file, behind the lines that were given out.
        lines_start: of the last lines that were given out.
    """

    def __init__(self, file: Any) -> None:
        self._file = file
        self._rest = b""
        self._ended = False
        self.position = self.lines_start = 0

    def seek(self, position: int) -> None:
        self._file.seek(position)
        self._rest, self._ended = b"", False
        self.position = position

    def _more(self) -> bytes:
        data: bytes = b"" if self._ended else self._file.read(_CHUNK)
        self._ended = not data
        return data

    def skip_line(self) -> bool:
        """Goes behind the next end of a line; False if there is none."""
        parts = [self._rest]
        while (end := parts[-1].find(b"\n")) < 0:
            if not (data := self._more()):
                self._rest = b""
                self.position += sum(map(len, parts))
                return False
            parts.append(data)
        self._rest = parts[-1][end + 1 :]
        self.position += sum(map(len, parts)) - len(self._rest)
        return True

    def next_lines(self) -> list[bytes]:
        """The next lines, with their ends; empty at the end of the file."""
        parts = [self._rest]
        while (end := parts[-1].rfind(b"\n")) < 0:
            if not (data := self._more()):
                end = len(parts[-1]) - 1
                break
            parts.append(data)
        self._rest = parts[-1][end + 1 :]
        parts[-1] = parts[-1][: end + 1]
        # SUBTLE: not `splitlines`, to which a carriage return alone ends a line.
        *whole, last = b"".join(parts).split(b"\n")
        lines = [line + b"\n" for line in whole]
        if last:
            lines.append(last)
        self.lines_start = self.position
        self.position += sum(map(len, lines))
        return lines


class _Records:
    """What lines are as records: decoded, without their ends if the source says so."""

    def __init__(self, source: Any) -> None:
        self._strip: bool = source._strip_trailing_newlines
        self._decode = source._coder.decode
        self._is_text = type(source._coder) is coders.StrUtf8Coder

    def of(self, lines: list[bytes]) -> Iterator[list[Any]]:
        """The records of some lines; none, or one list, or several."""
        if not lines:
            return
        if self._is_text and self._strip:
            try:
                text = b"".join(lines).decode("utf-8")
            except UnicodeDecodeError:
                pass
            else:
                records = text.split("\n")
                if not records[-1]:
                    records.pop()
                if "\r\n" in text:
                    records = [record.removesuffix("\r") for record in records[:-1]] + [
                        records[-1].removesuffix("\r") if text.endswith("\n") else records[-1]
                    ]
                yield records
                return
        for line in lines:
            yield [self._decode(self._stripped(line))]

    def _stripped(self, line: bytes) -> bytes:
        if not self._strip or not line.endswith(b"\n"):
            return line
        return line[:-2] if line.endswith(b"\r\n") else line[:-1]
