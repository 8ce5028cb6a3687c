"""The output of commands: text for people, JSON for programs.

Owns the `CommandOutput` interface and its two implementations. Must not know what is printed.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TextIO

from arcbeam.errors import ArcbeamError
from arcbeam.model.texts import visible


class CommandOutput(Protocol):
    """The output of a command. Results go to stdout; errors and progress to stderr."""

    def table(self, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
        """Print rows: one line each, or one JSON array of objects. Rows may lack columns, and may have more."""
        ...

    def record(self, fields: Mapping[str, Any]) -> None:
        """Print one thing: a line per field, or one JSON object."""
        ...

    def text(self, text: str, **fields: Any) -> None:
        """Print one sentence: `text` for people, `fields` (or {"message": text} if there are none) for programs."""
        ...

    def progress(self, text: str, **fields: Any) -> None:
        """Print the progress of long work. It overwrites itself on a terminal; one JSON object a line for programs."""
        ...

    def error(self, error: BaseException) -> None:
        """Print what went wrong, and what to do about it."""
        ...


class TextOutput:
    """For people. What a terminal would obey is escaped.

    Args:
        out: where results go (default: stdout).
        err: where errors and progress go (default: stderr).
    """

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self._out = out if out is not None else sys.stdout
        self._err = err if err is not None else sys.stderr
        self._progress_width = 0  # > 0: the terminal shows an unfinished progress line of that many characters

    def table(self, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
        """Print aligned columns; the last one is not padded."""
        self._end_progress()
        cells = [[visible(str(row.get(column, ""))) for column in columns] for row in rows]
        widths = [max([len(column), *(len(line[i]) for line in cells)]) for i, column in enumerate(columns)]
        for line in [list(columns), *cells]:
            padded = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
            print("  ".join(padded).rstrip(), file=self._out)

    def record(self, fields: Mapping[str, Any]) -> None:
        """Print one `name: value` line per field."""
        self._end_progress()
        width = max((len(name) for name in fields), default=0)
        for name, value in fields.items():
            print(visible(f"{name + ':':<{width + 1}} {value}"), file=self._out)

    def text(self, text: str, **fields: Any) -> None:
        """Print the text alone."""
        self._end_progress()
        print(visible(text), file=self._out)

    def progress(self, text: str, **fields: Any) -> None:
        """Print one line that overwrites the previous one; without a terminal, a line each time."""
        text = visible(text)
        if self._err.isatty():
            # A line longer than the terminal's width could not be overwritten.
            text = text[: shutil.get_terminal_size().columns - 1]
            print("\r" + text.ljust(self._progress_width), end="", file=self._err, flush=True)
            self._progress_width = len(text)
        else:
            print(text, file=self._err, flush=True)

    def error(self, error: BaseException) -> None:
        """Print `error: message`; the text of arcbeam's errors contains the remedy."""
        self._end_progress()
        print(visible(f"error: {error}"), file=self._err)

    def _end_progress(self) -> None:
        if self._progress_width:
            print(file=self._err)
            self._progress_width = 0


class JsonOutput:
    """For programs: one JSON document a line.

    Args:
        out: where results go (default: stdout).
        err: where errors and progress go (default: stderr).
    """

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self._out = out if out is not None else sys.stdout
        self._err = err if err is not None else sys.stderr

    def table(self, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
        """Print an array of objects with all their fields."""
        self._write([dict(row) for row in rows], self._out)

    def record(self, fields: Mapping[str, Any]) -> None:
        """Print an object."""
        self._write(dict(fields), self._out)

    def text(self, text: str, **fields: Any) -> None:
        """Print an object of the fields, else of the text."""
        self._write(fields or {"message": text}, self._out)

    def progress(self, text: str, **fields: Any) -> None:
        """Print {"progress": …} on stderr, so that stdout holds only the result."""
        self._write({"progress": fields or {"message": text}}, self._err)

    def error(self, error: BaseException) -> None:
        """Print {"error": {"type", "message", "remedy"}} on stderr."""
        body = {
            "type": type(error).__name__,
            "message": error.message if isinstance(error, ArcbeamError) else str(error),
            "remedy": error.remedy if isinstance(error, ArcbeamError) else "",
        }
        self._write({"error": body}, self._err)

    @staticmethod
    def _write(document: Any, stream: TextIO) -> None:
        print(json.dumps(document, default=str), file=stream, flush=True)
