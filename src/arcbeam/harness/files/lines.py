"""Lines of text files, read in large chunks.

Owns a reader that returns the same records for a range of a file as the SDK's text source, but as lists. It splits,
decodes and claims all lines of a chunk together. A contract test covers the SDK internals that this module relies on.
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
"""Bytes that are read in one call; a line may be longer."""


def can_read(source: Any) -> bool:
    """Return whether `read` supports an SDK source: a text source without special options."""
    return (
        type(source) is textio._TextSource
        and source._delimiter is None
        and source._escapechar is None
        and source._header_matcher is None
    )


def read(source: Any, file_name: str, tracker: Any) -> Iterator[list[Any]]:
    """Yield the records of a file whose lines begin within the tracker's range, in order, as lists.

    The range may be split at any time, from any thread. Records that were yielded before stay within it.

    Args:
        source: a source for which `can_read` is true.
        file_name: the file's name.
        tracker: an offset range tracker without claims.
    """
    with source.open_file(file_name) as file:
        chunks = _Chunks(file)
        for _ in range(source._skip_header_lines):
            chunks.skip_line()
        start = tracker.start_position()
        if start > chunks.position:
            # A line that begins exactly at the start is within the range: the byte before it ends another line.
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
    """Claim consecutive lines.

    Args:
        tracker: the tracker of the range.
        position: position of the first line.
        lines: the lines, with their ends.

    Returns:
        How many of them begin within the range. They are claimed, so a split can no longer take them.
    """
    last = position + sum(map(len, lines)) - len(lines[-1])
    if last < tracker.stop_position():
        if tracker.try_claim(last):
            return len(lines)
        # A split happened in between, so there was a claim before. After a refused claim, a smaller position cannot be
        # claimed: it is set instead.
    elif not tracker.try_claim(position):
        return 0
    starts = list(accumulate(map(len, lines[:-1]), initial=position))
    while count := bisect_left(starts, tracker.stop_position()):
        tracker.set_current_position(starts[count - 1])
        # SUBTLE: a position that is set cannot be split off any more, but may have been split off just before.
        if starts[count - 1] < tracker.stop_position():
            break
    return count


class _Chunks:
    """Whole lines of a file, in lists of as many as a chunk contains.

    Attributes:
        position: position in the file after the lines that were returned.
        lines_start: position of the lines that were returned last.
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
        """Skip to the end of the line; return False if the file has no further line end."""
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
        """Return the next lines, with their ends; [] at the end of the file."""
        parts = [self._rest]
        while (end := parts[-1].rfind(b"\n")) < 0:
            if not (data := self._more()):
                end = len(parts[-1]) - 1
                break
            parts.append(data)
        self._rest = parts[-1][end + 1 :]
        parts[-1] = parts[-1][: end + 1]
        # SUBTLE: not `splitlines`, for which a lone carriage return ends a line.
        *whole, last = b"".join(parts).split(b"\n")
        lines = [line + b"\n" for line in whole]
        if last:
            lines.append(last)
        self.lines_start = self.position
        self.position += sum(map(len, lines))
        return lines


class _Records:
    """Converts lines to records: decodes them, and strips line ends if the source is configured so."""

    def __init__(self, source: Any) -> None:
        self._strip: bool = source._strip_trailing_newlines
        self._decode = source._coder.decode
        self._is_text = type(source._coder) is coders.StrUtf8Coder

    def of(self, lines: list[bytes]) -> Iterator[list[Any]]:
        """Yield the records of lines, in any number of lists."""
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
