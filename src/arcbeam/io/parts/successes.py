"""The file that says that a window is over: `_SUCCESS`, or whatever it is called, with the window's files in it.

Owns what is in it, and that it is not there before they are. It brings along those of its files that were staged in its
own micro-batch: whoever publishes it publishes them first, for calls of a publisher have no order among them. Those of
earlier micro-batches are published by then.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.coders import FastPrimitivesCoder
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import BagStateSpec, TimerSpec, on_timer

from arcbeam.io.parts.naming import success_name
from arcbeam.io.parts.staging import Staging, staged_name
from arcbeam.io.parts.work import PartFile, Plain
from arcbeam.io.publishing import attempt


def success_of(name: str, files: Sequence[PartFile], own: Sequence[PartFile]) -> Plain:
    """A committable: the file of a window and destination.

    Args:
        name: what such files are called; "": there is none, and this only brings its own along.
        files: of the window, in order.
        own: those of them that this micro-batch has staged.
    """
    first, now = files[0], attempt()
    newest = max(files, key=lambda file: file.micro_batch)
    listed = [[file.staged.name, file.records, file.staged.size] for file in files]
    return {
        "kind": "success",
        "name": success_name(name, first.destination, first.span) if name else "",
        "staged": staged_name(now),
        "path": newest.path,
        "job": now.job,
        "step": now.micro_batch,
        "window": str(first.span),
        "destination": first.destination,
        "files": listed,
        "own": [file.plain() for file in own],
    }


def content(success: Mapping[str, Any]) -> bytes:
    """What is in the file."""
    files = [{"name": name, "records": records, "bytes": size} for name, records, size in success["files"]]
    said = {
        "job": success["job"],
        "step": success.get("step", 0),
        "window": success["window"],
        "destination": success["destination"],
        "records": sum(file["records"] for file in files),
        "files": files,
    }
    return (json.dumps(said, indent=1, ensure_ascii=False) + "\n").encode()


def put(staging: Staging, success: Mapping[str, Any]) -> None:
    """Writes the file, if there is none that knows more: that of a later micro-batch comes before this is tried
    again.
    """
    data = content(success)
    there = staging.get(success["name"])
    if there == data:
        return
    if there is not None:
        try:
            before = json.loads(there)
            # Not by how many files they have: a job that has gone back to a savepoint may make fewer.
            if success["job"] and before["job"] == success["job"] and before["step"] > success.get("step", 0):
                return
        except (ValueError, KeyError, TypeError):
            pass  # not one of ours: it is replaced, as any other file of the name is
    staging.put(success["name"], data, success["staged"])


class Complete(beam.DoFn):  # type: ignore[misc]  # Beam is untyped
    """Takes (key, part file), and puts out the window's success when it is over, and again when more has come.

    Args:
        name: what such files are called.
    """

    FILES = BagStateSpec("files", FastPrimitivesCoder())
    END = TimerSpec("end", TimeDomain.WATERMARK)

    def __init__(self, name: str) -> None:
        self._name = name

    def process(
        self,
        element: tuple[str, Plain],
        window: Any = beam.DoFn.WindowParam,
        files: Any = beam.DoFn.StateParam(FILES),
        end: Any = beam.DoFn.TimerParam(END),
    ) -> None:
        """A file; of a window that is over the timer is due at once."""
        files.add(element[1])
        end.set(window.max_timestamp())

    @on_timer(END)  # type: ignore[untyped-decorator]
    def over(self, files: Any = beam.DoFn.StateParam(FILES)) -> Iterable[Plain]:
        """The window is over."""
        found = in_order(files.read())
        if found:
            micro_batch = attempt().micro_batch
            yield success_of(self._name, found, [file for file in found if file.micro_batch == micro_batch])


def in_order(plains: Iterable[Plain]) -> list[PartFile]:
    """Files of a window and destination by shard and part."""
    return sorted(map(PartFile.of, plains), key=lambda file: (file.shard, file.part))
