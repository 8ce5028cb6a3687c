"""The file that was being read when a source failed. With a glob of a thousand files this is essential.

Owns how the file is found: in the frames of an exception, where a reader of a file has its name. A record that fails
later has no such note: blocks with records of several files may wait together. Must not know Spark.
"""

from __future__ import annotations

from types import FrameType, TracebackType

from apache_beam.io import filebasedsource

from arcbeam.harness.files import lines

_LINES = lines.read.__code__
_RECORDS = "read_records"
"""The method of the SDK's file sources that reads one file: `read_records(self, file_name, range_tracker)`."""


def note_file(error: BaseException) -> None:
    """Add a note to an exception with the file that was being read, if any."""
    trace: TracebackType | None = error.__traceback__
    name = ""
    while trace is not None:
        # The innermost one: a source may read other files for this one.
        name = _file_of(trace.tb_frame) or name
        trace = trace.tb_next
    note = f"  while reading {name}"
    if name and note not in getattr(error, "__notes__", ()):
        error.add_note(note)


def _file_of(frame: FrameType) -> str:
    """Return the file that a frame reads; "" if it is not the frame of a reader."""
    code = frame.f_code
    if code is _LINES:
        return str(frame.f_locals["file_name"])
    if code.co_name != _RECORDS or code.co_argcount < 2:
        return ""
    owner, name = (frame.f_locals.get(argument) for argument in code.co_varnames[:2])
    return name if isinstance(owner, filebasedsource.FileBasedSource) and isinstance(name, str) else ""
