"""`WriteParts`: records into files that are whole, there once, and there when their commit is.

Owns what users say, what is refused when they say it, and how the ways to write are put together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import apache_beam as beam
from apache_beam.options.pipeline_options import (
    AzureOptions,
    GoogleCloudOptions,
    HadoopFileSystemOptions,
    PipelineOptions,
    S3Options,
)
from apache_beam.transforms import window

from arcbeam.io.parts.direct import Number, WriteHere
from arcbeam.io.parts.formats import Format, Text
from arcbeam.io.parts.keyed import Chunks, Together, Waiting, WriteGrouped
from arcbeam.io.parts.naming import Template, check_name
from arcbeam.io.parts.packs import Plain as Packed
from arcbeam.io.parts.packs import Roll
from arcbeam.io.parts.publisher import PublishParts
from arcbeam.io.parts.spans import Kept, check_template
from arcbeam.io.parts.successes import Complete
from arcbeam.io.parts.work import Part, PartFile, Plain, Work
from arcbeam.io.publishing import Publish
from arcbeam.io.windowfns import told
from arcbeam.secrets import install, parted, without_credentials

_BYTES: Final = 128 << 20
"""Of a part, if nothing else is said."""
_SECONDS: Final = 60.0
"""For which a part of an unbounded global window is in progress, if nothing else is said: that window never ends."""
_VIEWS: Final = (S3Options, HadoopFileSystemOptions, GoogleCloudOptions, AzureOptions)


class WriteParts(beam.PTransform):  # type: ignore[misc]  # Beam is untyped
    """Writes records to files below a path: `lines | WriteParts("s3://logs/out")`.

    A file is first *in progress* (its records are in the state of the job), then *pending* (staged whole, where no
    reader looks, and known to the commit), then *committed*: renamed, or its upload completed, when the commit is made.
    So readers see files that are whole, with records that are committed, each record once, whatever is killed when.
    Readers must pass over names that begin with "." or "_", as Beam, Spark and Hadoop do.

    A bounded pipeline publishes all of them at its end; if it fails, none. Run again into the same path with the same
    names, its files of a window and destination take the place of those of the runs before, however many there were:
    these are removed behind the publishing. Other windows and destinations are left alone. In a streaming job the names
    are one job's: see `overwrite`.

    *How they are written.* Without `shards`, a bounded pipeline writes where the records are: each task has at most a
    hundred files open, each for a window and destination, and 128 MiB of them in memory; beyond that it closes the one
    that was written to longest ago, or that has most in memory, and begins a further part if more comes. The shard is
    the place of the task among those that wrote.
    With `shards`, or if windows merge, records first travel to the task that writes their shard. So they do in an
    unbounded pipeline, where they wait in state until their part is closed (see `Roll`) or the window is over. Late
    records make further parts, as long as the lateness that is allowed is not over; later ones are dropped and counted
    by the chunk in which they travel. One shard takes some hundred thousand lines a second, so one is what there is,
    if nothing else is said.

    *Names* are `part-{window}-{shard}-{part}{suffix}`, in a folder of the destination; without the window in the global
    one. The same records in the same order have the same names and files. A bounded input of a pipeline that also has
    an unbounded one, and any on an object store, has gaps among its shards.

    *The result* is a collection of `Part`: one for each file, when it is staged. It is published with the commit: do
    not read it from there. Its windows are those of the records in an unbounded pipeline, else the global one.

    *Resuming.* Records of parts in progress wait as the format has encoded them. A job is not resumed with another
    format, or other fields or another schema: the stage's state is said to be another.

    On other runners, which know no commits, files are published when they are staged.

    Args:
        path: a folder or URL, of any file system that Beam knows. "s3://" needs boto3 (`apache-beam[aws]`).
        format: of the files: `Text`, `JsonLines`, `Csv`, `Bytes`, `Avro`, `Parquet`, or a `Format` of your own.
        destination: of a record, a folder below the path ("a/b"); None: there is one for all.
        shards: of each destination and window.
        roll: when a part is closed. None: at 128 MiB, and in an unbounded global window each minute.
        name: a template, see `arcbeam.io.parts.naming.Template`: "{start:%Y/%m/%d}/{shard}-{part}{suffix}".
        success: what the file is called that is published when a window is over, behind all its files, in JSON with
            their names, records and bytes; again if more come late. "_SUCCESS", say; the window follows if there is
            one. It is in the folder of the destination, and there is none for a window without records. Not for an
            unbounded input in the global window, which is never over.
        overwrite: whether a streaming job may replace the files of another one that has given the same names. Without,
            it fails: it numbers its parts from the first, and would replace them one by one. The others stay. A job
            that is resumed, or goes back to a savepoint, is the same job.

    Raises:
        TypeError: an argument is not what it should be.
        ValueError: likewise; names do not tell files apart, or lead out of the path; another one of the
            pipeline gives the same below it; windows merge, or `success` is given in the global window, and the input
            is unbounded.
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
            raise ValueError(f"WriteParts({path!r}): give it a folder or URL")
        if without_credentials(path) != path:
            raise ValueError(
                f"WriteParts({without_credentials(path)!r}): a path with credentials is stored with the pipeline; "
                "give them as options (--s3_access_key_id, --s3_secret_access_key) or in the workers' environment"
            )
        if format is not None and not isinstance(format, Format):
            raise TypeError(f"WriteParts(format={format!r}): give it a Format, as arcbeam.io.Text()")
        if roll is not None and not isinstance(roll, Roll):
            raise TypeError(f"WriteParts(roll={roll!r}): give it an arcbeam.io.Roll")
        if destination is not None and not callable(destination):
            raise TypeError(f"WriteParts(destination={destination!r}): give it a function of a record")
        if shards is not None and (not isinstance(shards, int) or shards < 1):
            raise ValueError(f"WriteParts(shards={shards!r}): there is at least one")
        if success is not None and "/" in check_name(success, "success"):
            raise ValueError(f"WriteParts(success={success!r}): it is the name of a file, without folders")
        self._path, self._format = path, format or Text()
        self._destination, self._shards, self._roll = destination, shards, roll
        self._name, self._success = name, success or ""
        self._overwrite = overwrite
        self._written: frozenset[str] = frozenset()
        if name is not None:
            self._template(name, shards)  # what is wrong with it whatever the windows are, is said here

    def _template(self, name: str, shards: int | None) -> Template:
        return Template(name, destinations=self._destination is not None, shards=shards)

    def expand(self, records: Any) -> Any:
        """See `beam.PTransform`."""
        windowfn = records.windowing.windowfn
        merges, has_windows = windowfn.is_merging(), not isinstance(windowfn, window.GlobalWindows)
        if merges and not records.is_bounded:
            raise ValueError(
                f"WriteParts into {self._path}: windows of {told(windowfn)} merge, and which there are is not "
                "known before they are over: group the records first, and give what comes out of it windows that do not"
            )
        shards = self._shards if records.is_bounded and not merges else self._shards or 1
        usual = Template.usual(destinations=self._destination is not None, windows=has_windows)
        template = self._template(self._name or usual, shards)
        check_template(template, windowfn)
        roll = self._roll
        if roll is None:
            roll = Roll(bytes=_BYTES, seconds=None if records.is_bounded or has_windows else _SECONDS)
        options = parted(_options_of(records.pipeline))
        install(options.secrets)
        secrets = tuple(sorted(options.secrets))
        work = Work(self._path, self._format, template, roll, options.options, self._overwrite, secrets)
        self._check_others(records.pipeline, template)
        if not records.is_bounded:
            return self._unbounded(records, work, shards or 1)
        return self._bounded(records, work, shards, merges)

    def _check_others(self, pipeline: Any, template: Template) -> None:
        """Looks whether another one of the pipeline writes files of the same names: one would replace the other's."""
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
                    "what the other has written. Give one another path, or another name"
                )
        self._written = mine

    def _unbounded(self, records: Any, work: Work, shards: int) -> Any:
        if self._success and isinstance(records.windowing.windowfn, window.GlobalWindows):
            raise ValueError(
                f"WriteParts into {self._path}: success={self._success!r} is for windows that end, and the global one "
                "of an unbounded input does not: its list of files would grow for ever. Leave success out, or give the "
                "records windows, by beam.WindowInto(FixedWindows(60)), say"
            )
        chunks = records | "Chunk" >> _chunks(work, self._destination, shards)
        coder = records.windowing.windowfn.get_window_coder()
        files = chunks | "Write" >> Waiting(work, coder).with_output_types(tuple[str, Plain])
        now = files | "Files" >> beam.Values().with_output_types(Plain)
        _publish(now, work)
        if self._success:
            complete = beam.ParDo(Complete(self._success)).with_output_types(Plain)
            _publish(files | "Complete" >> complete, work, "Publish success", sweeps=False)
        return now | "Part" >> beam.Map(_part_of(work)).with_output_types(Part)

    def _bounded(self, records: Any, work: Work, shards: int | None, merges: bool) -> Any:
        windowfn = records.windowing.windowfn
        coder = windowfn.get_window_coder()
        if shards is None:
            here = beam.ParDo(WriteHere(work, self._destination, coder)).with_output_types(tuple[str, Plain])
            files = records | "Write" >> here
        else:
            together = beam.ParDo(Together(None if merges else coder))
            chunks = (
                records
                | "Chunk" >> _chunks(work, self._destination, shards)
                | "Together" >> together.with_output_types(tuple[tuple[str, str, int], Packed])
                # Triggers are for results that are to be seen before their time.
                | "Windows" >> beam.WindowInto(Kept(windowfn) if merges else window.GlobalWindows())
            )
            write = beam.ParDo(WriteGrouped(work, coder)).with_output_types(tuple[str, Plain])
            files = chunks | "Group" >> beam.GroupByKey() | "Write" >> write
        files |= "All windows" >> beam.WindowInto(window.GlobalWindows())
        now = files | "Now" >> beam.FlatMap(_of_micro_batches).with_output_types(Plain)
        _publish(now, work)
        number = beam.ParDo(Number(work, self._success)).with_outputs(Number.SUCCESS, main="files")
        numbered = files | "Gather" >> beam.GroupByKey() | "Number" >> number
        # What says that all are there brings them along.
        _publish(numbered[Number.SUCCESS], work, "Publish numbered", sweeps=False)
        seen = (now, numbered.files) | "Seen" >> beam.Flatten()
        return seen | "Part" >> beam.Map(_part_of(work)).with_output_types(Part)

    def default_label(self) -> str:
        """See `beam.PTransform`."""
        return f"WriteParts({self._path})"

    def display_data(self) -> dict[str, Any]:
        """See `beam.PTransform`."""
        return {"path": self._path, "format": type(self._format).__name__}


def _applied(of: Any) -> Iterator[Any]:
    """A transform of a pipeline, and all in it."""
    yield of
    for part in of.parts:
        yield from _applied(part)


def _place(path: str) -> str:
    return path.removeprefix("file://").rstrip("/")


def _chunks(work: Work, destination: Callable[[Any], str] | None, shards: int) -> Any:
    return beam.ParDo(Chunks(work, destination, shards)).with_output_types(tuple[tuple[str, int], Packed])


def _publish(of: Any, work: Work, label: str = "Publish", *, sweeps: bool = True) -> None:
    """Publishes a collection: each by itself, for one of several would be a stage of its own, behind all of theirs."""
    _ = of | label >> Publish(PublishParts(work, sweeps=sweeps))


def _of_micro_batches(element: tuple[str, Plain]) -> Iterator[Plain]:
    """What is published as it is, without waiting for others."""
    if element[1]["step"]:
        yield element[1]


def _part_of(work: Work) -> Callable[[Plain], Part]:
    return lambda plain: work.part(PartFile.of(plain))


def _options_of(pipeline: Any) -> Mapping[str, Any]:
    """What file systems are told by the pipeline's options; processes of Spark's are told by nobody else."""
    options: PipelineOptions = pipeline.options
    return {
        name: value
        for view in _VIEWS
        for name, value in options.view_as(view).get_all_options(drop_default=True, current_only=True).items()
        if isinstance(value, str | int | float | bool | list)
    }
