"""Which file was being read when a source failed: with a glob of a thousand that is the first thing one needs.

Owns how the file is found: in the frames of an exception, where a reader of one file has its name. What fails on a
record later is not told so: blocks of records of several files may wait together. Must not know Spark.
"""

from __future__ import annotations

from types import FrameType, TracebackType

from apache_beam.io import filebasedsource

from arcbeam.harness.files import lines

_LINES = lines.read.__code__
_RECORDS = "read_records"
"""The method of the SDK's sources of files that reads one: `read_records(self, file_name, range_tracker)`."""


def note_file(error: BaseException) -> None:
    """Notes in an exception which file was being read, if one was."""
    trace: TracebackType | None = error.__traceback__
    name = ""
    while trace is not None:
        # The innermost: a source may read other files on its way.
        name = _file_of(trace.tb_frame) or name
        trace = trace.tb_next
    note = f"  while reading {name}"
    if name and note not in getattr(error, "__notes__", ()):
        error.add_note(note)


def _file_of(frame: FrameType) -> str:
    """The file that a frame reads; "" if it is not that of a reader."""
    code = frame.f_code
    if code is _LINES:
        return str(frame.f_locals["file_name"])
    if code.co_name != _RECORDS or code.co_argcount < 2:
        return ""
    owner, name = (frame.f_locals.get(argument) for argument in code.co_varnames[:2])
    return name if isinstance(owner, filebasedsource.FileBasedSource) and isinstance(name, str) else ""
