"""`WriteParts`: writes records to files that are complete, unique, and visible only after their commit.

Owns the arguments that users pass, the checks of these when the pipeline is built, and the composition of the DoFns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import apache_beam as beam
from apache_beam.transforms import window
from typing_extensions import override

from arcbeam.io.parts.direct import Number, WriteHere
from arcbeam.io.parts.formats import Format, Text
from arcbeam.io.parts.keyed import BoundedChunks, EncodedChunks, WriteGrouped, WriteWaitingRecords
from arcbeam.io.parts.naming import Template, check_name
from arcbeam.io.parts.packs import Plain as Packed
from arcbeam.io.parts.packs import Roll
from arcbeam.io.parts.places import options_of
from arcbeam.io.parts.publisher import PublishParts
from arcbeam.io.parts.spans import AssignedWindows, check_template
from arcbeam.io.parts.successes import CompleteWindows
from arcbeam.io.parts.work import PartFile, Plain, StagedPart, Work
from arcbeam.io.publishing import Publish
from arcbeam.io.windowfns import describe
from arcbeam.model.urns import EMBEDDED_ANNOTATION
from arcbeam.secrets import install, parted, without_credentials

_BYTES: Final = 128 << 20
"""Size of a part by default."""
_SECONDS: Final = 60.0
"""Age of a part in an unbounded global window by default: that window never ends."""


class WriteParts(beam.PTransform):  # type: ignore[misc]  # Beam is untyped
    """Write records to files below a path: `lines | WriteParts("s3://logs/out")`.

    A file is first *in progress*: its records are in the job's state. Then it is *pending*: staged completely where no
    reader looks, and recorded in the commit. After the commit it is *committed*: it is renamed, or its upload is
    completed. So readers see only complete files with committed records, each record exactly once, also after a kill.
    Readers must skip names that begin with "." or "_", as Beam, Spark and Hadoop do.

    A bounded pipeline publishes all files at its end. If it fails, it publishes none. When it runs again with the same
    path and names, its files of a window and destination replace those of earlier runs, however many there were. The
    old files are removed after the new ones are published. Files of other windows and destinations stay. In streaming
    one job owns the names: see `overwrite`.

    *How files are written.* Without `shards`, each task of a bounded pipeline writes the records that it has. It has at
    most a hundred files open, one for each window and destination, with at most 128 MiB of them in memory. Beyond that
    it closes the least recently written file, or the one with the most data in memory. Further records of that window
    and destination go to another part. The shard is the task's place among those that wrote.

    With `shards`, or if windows merge, records first travel to the task that writes their shard. The same applies to an
    unbounded pipeline. There they wait in the state until their part is closed (see `Roll`) or the window ends. Late
    records make further parts until the allowed lateness has passed. Later records are dropped, and counted by the
    chunk in which they travel. One shard writes some hundred thousand lines per second, so the default is one.

    *Names* are `part-{window}-{shard}-{part}{suffix}`, in a folder of the destination. The global window is omitted.
    The same records in the same order have the same names and files. The numbers of shards have gaps on object stores,
    and for bounded inputs of a pipeline that also has an unbounded one.

    *The result* is a collection of `StagedPart`, one for each file when it is staged. A file is published after the
    commit, so do not read it from there. In an unbounded pipeline a `StagedPart` is in the window of its records, else
    in the global window.

    *Resuming.* Records of parts in progress are stored as the format has encoded them. A job cannot be resumed with
    another format, other fields or another schema: this changes the state of the stage.

    Other runners do not know commits. They publish files when they are staged.

    Args:
        path: a folder or URL of any file system that Beam knows. "s3://" requires boto3 (`apache-beam[aws]`).
        format: the file format: `Text`, `JsonLines`, `Csv`, `Bytes`, `Avro`, `Parquet`, or a `Format` of your own.
        destination: a function that returns the folder of a record, below the path ("a/b"). None: no such folders.
        shards: number of shards of each destination and window.
        roll: when a part is closed. None: at 128 MiB, and in an unbounded global window also each minute.
        name: a template, see `arcbeam.io.parts.naming.Template`: "{start:%Y/%m/%d}/{shard}-{part}{suffix}".
        success: the name of a file that is published after all files of a window, "_SUCCESS" for example. It contains
            their names, records and bytes as JSON. It is published again if late files follow. The window is added to
            the name, except for the global one. The file is in the folder of the destination. A window without records
            has none. Not for an unbounded input in the global window, which never ends.
        overwrite: whether a streaming job may replace files of another job with the same names. Otherwise it fails:
            jobs number parts from zero, so it would replace the other job's files one by one and leave the rest. A job
            that is resumed, or restored from a savepoint, is the same job.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument is invalid; names are not unique, or lead out of the path; another `WriteParts` of the
            pipeline creates the same names; or the input is unbounded, and windows merge or `success` is set in the
            global window.
    """

    def __init__(
        self,
        path: str,
        format: Format | None = None,
        *,
        destination: Callable[[Any], str] | None = None,
        shards: int | None = None,
        roll: Roll | None = None,
        name: str | None = None,
        success: str | None = None,
        overwrite: bool = False,
        label: str | None = None,
    ) -> None:
        super().__init__(label)
        if not isinstance(path, str) or not path.strip("/"):
            raise ValueError(f"WriteParts({path!r}): expected a folder or URL")
        if without_credentials(path) != path:
            raise ValueError(
                f"WriteParts({without_credentials(path)!r}): a path with credentials would be stored with the "
                "pipeline; "
                "pass them as options (--s3_access_key_id, --s3_secret_access_key) or in the workers' environment"
            )
        if format is not None and not isinstance(format, Format):
            raise TypeError(f"WriteParts(format={format!r}): expected a Format, such as arcbeam.io.Text()")
        if roll is not None and not isinstance(roll, Roll):
            raise TypeError(f"WriteParts(roll={roll!r}): expected an arcbeam.io.Roll")
        if destination is not None and not callable(destination):
            raise TypeError(f"WriteParts(destination={destination!r}): expected a function of a record")
        if shards is not None and (not isinstance(shards, int) or shards < 1):
            raise ValueError(f"WriteParts(shards={shards!r}): expected a number of at least 1")
        if success is not None and "/" in check_name(success, "success"):
            raise ValueError(f"WriteParts(success={success!r}): expected the name of a file, without folders")
        self._path, self._format = path, format or Text()
        self._destination, self._shards, self._roll = destination, shards, roll
        self._name, self._success = name, success or ""
        self._overwrite = overwrite
        self._written: frozenset[str] = frozenset()
        if name is not None:
            self._template(name, shards)  # raises the errors that do not depend on the windows

    def _template(self, name: str, shards: int | None) -> Template:
        return Template(name, destinations=self._destination is not None, shards=shards)

    @override
    def expand(self, records: Any) -> Any:
        windowfn = records.windowing.windowfn
        merges, has_windows = windowfn.is_merging(), not isinstance(windowfn, window.GlobalWindows)
        if merges and not records.is_bounded:
            raise ValueError(
                f"WriteParts into {self._path}: windows of {describe(windowfn)} merge, so they are not known before "
                "they end: group the records first, and put the result into windows that do not merge"
            )
        shards = self._shards if records.is_bounded and not merges else self._shards or 1
        usual = Template.usual(destinations=self._destination is not None, windows=has_windows)
        template = self._template(self._name or usual, shards)
        check_template(template, windowfn)
        roll = self._roll
        if roll is None:
            roll = Roll(bytes=_BYTES, seconds=None if records.is_bounded or has_windows else _SECONDS)
        options = parted(options_of(records.pipeline))
        install(options.secrets)
        secrets = tuple(sorted(options.secrets))
        work = Work(self._path, self._format, template, roll, options.options, self._overwrite, secrets)
        self._check_others(records.pipeline, template)
        if not records.is_bounded:
            return self._unbounded(records, work, shards or 1)
        return self._bounded(records, work, shards, merges)

    def _check_others(self, pipeline: Any, template: Template) -> None:
        """Raise an error if another `WriteParts` of the pipeline creates the same names: files would be replaced."""
        mine = frozenset(
            [f"files named {template.text!r} that end with {self._format.suffix!r}"]
            + [f"a success={self._success!r}"] * bool(self._success)
        )
        me = pipeline.transforms_stack[-1]
        for other in _applied(pipeline.transforms_stack[0]):
            of = other.transform
            if other is me or not isinstance(of, WriteParts) or _place(of._path) != _place(self._path):
                continue
            for twice in sorted(mine & of._written):
                raise ValueError(
                    f"{me.full_label} and {other.full_label} both write into {self._path}, {twice}: each would replace "
                    "the other's files. Use another path or name for one of them"
                )
        self._written = mine

    def _unbounded(self, records: Any, work: Work, shards: int) -> Any:
        if self._success and isinstance(records.windowing.windowfn, window.GlobalWindows):
            raise ValueError(
                f"WriteParts into {self._path}: success={self._success!r} requires windows that end. The global window "
                "of an unbounded input never ends, and its list of files would grow forever. Omit success, or put the "
                "records into windows, for example beam.WindowInto(FixedWindows(60))"
            )
        chunks = records | "Chunk" >> _chunks(work, self._destination, shards)
        coder = records.windowing.windowfn.get_window_coder()
        files = chunks | "Write" >> WriteWaitingRecords(work, coder).with_output_types(tuple[str, Plain])
        now = files | "Files" >> beam.Values().with_output_types(Plain)
        _publish(now, work)
        if self._success:
            complete = beam.ParDo(CompleteWindows(self._success)).with_output_types(Plain)
            _publish(files | "CompleteWindows" >> complete, work, "Publish success", sweeps=False)
        return now | "StagedPart" >> beam.Map(_part_of(work)).with_output_types(StagedPart)

    def _bounded(self, records: Any, work: Work, shards: int | None, merges: bool) -> Any:
        windowfn = records.windowing.windowfn
        coder = windowfn.get_window_coder()
        if shards is None:
            here = beam.ParDo(WriteHere(work, self._destination, coder)).with_output_types(tuple[str, Plain])
            files = records | "Write" >> here
        else:
            together = beam.ParDo(BoundedChunks(None if merges else coder))
            chunks = (
                records
                | "Chunk" >> _chunks(work, self._destination, shards)
                | "BoundedChunks" >> together.with_output_types(tuple[tuple[str, str, int], Packed])
                # Triggers emit early results. Here all chunks of a window are needed.
                | "Windows" >> beam.WindowInto(AssignedWindows(windowfn) if merges else window.GlobalWindows())
            )
            write = beam.ParDo(WriteGrouped(work, coder)).with_output_types(tuple[str, Plain])
            files = chunks | "Group" >> beam.GroupByKey() | "Write" >> write
        files |= "All windows" >> beam.WindowInto(window.GlobalWindows())
        now = files | "Now" >> beam.FlatMap(_of_micro_batches).with_output_types(Plain)
        _publish(now, work)
        number = beam.ParDo(Number(work, self._success)).with_outputs(Number.SUCCESS, main="files")
        numbered = files | "Gather" >> beam.GroupByKey() | "Number" >> number
        # The success committable carries the files that it lists.
        _publish(numbered[Number.SUCCESS], work, "Publish numbered", sweeps=False)
        seen = (now, numbered.files) | "Seen" >> beam.Flatten()
        return seen | "StagedPart" >> beam.Map(_part_of(work)).with_output_types(StagedPart)

    @override
    def annotations(self) -> dict[str, Any]:
        return {**super().annotations(), EMBEDDED_ANNOTATION: b""}

    @override
    def default_label(self) -> str:
        return f"WriteParts({self._path})"

    @override
    def display_data(self) -> dict[str, Any]:
        return {"path": self._path, "format": type(self._format).__name__}


def _applied(of: Any) -> Iterator[Any]:
    """Yield an applied transform and all transforms in it."""
    yield of
    for part in of.parts:
        yield from _applied(part)


def _place(path: str) -> str:
    return path.removeprefix("file://").rstrip("/")


def _chunks(work: Work, destination: Callable[[Any], str] | None, shards: int) -> Any:
    return beam.ParDo(EncodedChunks(work, destination, shards)).with_output_types(tuple[tuple[str, int], Packed])


def _publish(of: Any, work: Work, label: str = "Publish", *, sweeps: bool = True) -> None:
    """Publish one collection. A Publish of several collections would be an extra stage after all of their stages."""
    _ = of | label >> Publish(PublishParts(work, sweeps=sweeps))


def _of_micro_batches(element: tuple[str, Plain]) -> Iterator[Plain]:
    """Yield a file of a streaming job, which is published without waiting for others."""
    if element[1]["micro_batch"]:
        yield element[1]


def _part_of(work: Work) -> Callable[[Plain], StagedPart]:
    return lambda plain: work.part(PartFile.of(plain))
