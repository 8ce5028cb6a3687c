"""The success file of a window, `_SUCCESS` for example: it lists the window's files when they are complete.

Owns its content, and that it appears after its files. Its committable carries the files that were staged in the same
micro-batch, because calls of a publisher have no order. The publisher publishes these files first. Files of earlier
micro-batches are already published.
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
from arcbeam.io.parts.work import VERSION, PartFile, Plain
from arcbeam.io.publishing import attempt


def success_of(name: str, files: Sequence[PartFile], own: Sequence[PartFile]) -> Plain:
    """Return the committable of the success file of a window and destination.

    Args:
        name: the name of success files; "": none is written, and the committable only carries its own files.
        files: the window's files, in order.
        own: the files that this micro-batch has staged.
    """
    first, now = files[0], attempt()
    newest = max(files, key=lambda file: file.micro_batch)
    listed = [[file.staged.name, file.records, file.staged.size] for file in files]
    return {
        "kind": "success",
        "version": VERSION,
        "name": success_name(name, first.destination, first.span) if name else "",
        "staged": staged_name(now),
        "path": newest.path,
        "job": now.job,
        "micro_batch": now.micro_batch,
        "window": str(first.span),
        "destination": first.destination,
        "files": listed,
        "own": [file.plain() for file in own],
    }


def content(success: Mapping[str, Any]) -> bytes:
    """Return the content of the file."""
    files = [{"name": name, "records": records, "bytes": size} for name, records, size in success["files"]]
    record = {
        "version": VERSION,
        "job": success["job"],
        "micro_batch": success["micro_batch"],
        "window": success["window"],
        "destination": success["destination"],
        "records": sum(file["records"] for file in files),
        "files": files,
    }
    return (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode()


def put(staging: Staging, success: Mapping[str, Any]) -> None:
    """Write the file, unless a later micro-batch has written it: that may happen before a failed call is repeated."""
    data = content(success)
    existing = staging.get(success["name"])
    if existing == data:
        return
    if existing is not None:
        try:
            before = json.loads(existing)
            # The number of files does not decide: a job that was restored from a savepoint may have fewer.
            if success["job"] and before["job"] == success["job"] and before["micro_batch"] > success["micro_batch"]:
                return
        except (ValueError, KeyError, TypeError):
            pass  # not a file of ours: it is replaced, like any file of that name
    staging.put(success["name"], data, success["staged"])


class CompleteWindows(beam.DoFn):  # type: ignore[misc]  # Beam is untyped
    """Takes (key, part file), and emits the window's success committable when it ends, and again after late files.

    Args:
        name: the name of success files.
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
        """Add a file. If the window has ended, the timer is due at once."""
        files.add(element[1])
        end.set(window.max_timestamp())

    @on_timer(END)  # type: ignore[untyped-decorator]
    def over(self, files: Any = beam.DoFn.StateParam(FILES)) -> Iterable[Plain]:
        """Emit the success committable at the end of the window."""
        found = in_order(files.read())
        if found:
            micro_batch = attempt().micro_batch
            yield success_of(self._name, found, [file for file in found if file.micro_batch == micro_batch])


def in_order(plains: Iterable[Plain]) -> list[PartFile]:
    """Return the files of a window and destination, sorted by shard and part."""
    return sorted(map(PartFile.of, plains), key=lambda file: (file.shard, file.part))
