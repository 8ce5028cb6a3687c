"""All formats that arcbeam stores: a table for the docs, and a description of each that guards it against changes.

    python -m tools.generators.formats            writes missing descriptions, and the table in docs/developers/store.md
    python -m tools.generators.formats --check    fails if the table or a description is out of date

`tests/store/formats/NAME-VERSION.txt` describes a version of a format: names and types of its fields, and names and
values of its enums. It is never written again. If the code describes another format under the same version, the check
fails: raise the format's version, keep a reader of the old one, and run this again. Before it is released, remove
its file instead.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import sys
import types
import typing
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from struct import Struct
from types import ModuleType
from typing import Any, NamedTuple

from arcbeam.engine.grouping import record as groupingrecord
from arcbeam.engine.grouping import sortedruns, triggerstate
from arcbeam.engine.rows import keyspace
from arcbeam.engine.state import residuals, restrictiontotals
from arcbeam.io.kafka import publisher as kafkapublisher
from arcbeam.io.parts import work
from arcbeam.jobs import registry
from arcbeam.model.commits import CommitMode
from arcbeam.model.files import FileKind
from arcbeam.spark.tasks import storedsetup
from arcbeam.spark.tasks.shipping import WorkerSetup
from arcbeam.store.jobtemp import chunkfile, framefile, keyfile
from arcbeam.store.log import chain, drivernote, endnote, historyfile, planfile, requests, troublenote
from arcbeam.store.manifest import jobgraphfile, manifestfile
from arcbeam.store.manifest.values import ManifestKind
from arcbeam.store.shards import cache, shardfile
from arcbeam.streaming import driverstate
from arcbeam.streaming.status import samples, snapshot

ROOT = Path(__file__).resolve().parents[2]
DESCRIPTIONS = ROOT / "tests" / "store" / "formats"
PAGE = ROOT / "docs" / "developers" / "store.md"
_COMMAND = "python -m tools.generators.formats"
BEGIN, END = "<!-- formats: python -m tools.generators.formats -->\n", "<!-- end of formats -->\n"


class Format(NamedTuple):
    """A format. Structs of its module are part of its description.

    Attributes:
        name: words joined by hyphens.
        where: the files that have it.
        owner: the module that writes and reads it.
        parts: what else it consists of: classes with fields, enums, Avro schemas, names, and SQL.
        constant: of the module: its version.
    """

    name: str
    where: str
    owner: ModuleType
    parts: Sequence[Any]
    constant: str = "VERSION"

    @property
    def version(self) -> int:
        """The number of the version that is written."""
        value = getattr(self.owner, self.constant)
        return int.from_bytes(value, "big") if isinstance(value, bytes) else int(value)

    @property
    def file(self) -> Path:
        """The file with the description of this version."""
        return DESCRIPTIONS / f"{self.name}-{self.version}.txt"


FORMATS = (
    Format("manifest", "`manifests/`", manifestfile, [manifestfile._SCHEMA, ManifestKind, CommitMode, FileKind]),
    Format("progress", "in a manifest", driverstate, [driverstate.Progress]),
    Format("snapshot", "in a manifest", snapshot, [snapshot.Snapshot]),
    Format("epoch", "`epochs/`", chain, [["token", "driver", "time"]], "EPOCH_VERSION"),
    Format("floor", "`floors/`", chain, [chain._FLOOR], "FLOOR_VERSION"),
    Format("shard", "`shards/`", shardfile, []),
    Format("rows", "in `shards/`", keyspace, [keyspace.RowKind, keyspace.Section], "FORMAT"),
    Format("restriction", "in `shards/`", residuals, [], "_VERSION"),
    Format("restriction-totals", "in `shards/`", restrictiontotals, [restrictiontotals.RestrictionTotals], "_VERSION"),
    Format("window", "in `shards/`", groupingrecord, []),
    Format("window-runs", "in `shards/`", sortedruns, []),
    Format("trigger", "in `shards/`", triggerstate, []),
    Format("frames", "`side/`", framefile, []),
    Format("job-graph", "`job_graphs/`", jobgraphfile, [jobgraphfile.JobGraph]),
    Format("worker-setup", "in a job graph", storedsetup, [list(storedsetup.record_of(WorkerSetup()))]),
    Format("request", "`requests/`, `answers/`", requests, [requests.Request, requests.Answer]),
    Format("samples", "`samples/`", samples, []),
    Format("trouble", "`trouble`", troublenote, [troublenote.TroubleNote]),
    Format("driver", "`driver`", drivernote, [drivernote.DriverNote]),
    Format("end", "`ended`", endnote, [endnote.EndNote]),
    Format("history", "`history`", historyfile, [historyfile._SCHEMA]),
    Format("plan", "`plan`, `tasks`, `details`", planfile, []),
    Format("copy", "a host's copy of a shard", cache, [], "_FORMAT"),
    Format("chunks", "temporary, of a side input", chunkfile, []),
    Format("keys", "temporary, of a side input by key", keyfile, []),
    Format("part-file", "in a committable, and beside part files", work, [work.PartFile]),
    Format("kafka-part", "in a committable", kafkapublisher, [kafkapublisher.TransactionPart]),
    Format("registry", "the job server's database", registry, [registry._SCHEMA]),
)


def main(arguments: Sequence[str]) -> int:
    """Write what is missing, or check; return the exit code."""
    wrong = list(changed())
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    made = before + BEGIN + table() + END + rest.partition(END)[2]
    if "--check" in arguments:
        if page != made:
            wrong.append(f"the table of formats in docs/developers/store.md is out of date: run {_COMMAND}")
    else:
        PAGE.write_text(made, encoding="utf-8")
        DESCRIPTIONS.mkdir(exist_ok=True)
        for of in FORMATS:
            if not of.file.exists():
                of.file.write_text(description(of), encoding="utf-8")
        wrong = list(changed())
    for line in wrong:
        print(line, file=sys.stderr)
    if not wrong:
        print("formats: as described")
    return int(bool(wrong))


def changed() -> Iterator[str]:
    """Yield a line for each format that is not as its description says."""
    for of in FORMATS:
        known = of.file.read_text(encoding="utf-8") if of.file.exists() else None
        if known is None:
            yield f"format '{of.name}' has version {of.version} without a description: run {_COMMAND}"
        elif known != description(of):
            difference = difflib.unified_diff(known.splitlines(), description(of).splitlines(), lineterm="", n=0)
            lines = [line for line in difference if line[:3] not in ("---", "+++") and line[:2] != "@@"]
            yield (
                f"format '{of.name}' has changed, but still has version {of.version}: raise the version in "
                f"{of.owner.__name__}, and keep a reader of version {of.version}:\n  " + "\n  ".join(lines)
            )


def description(of: Format) -> str:
    """Return the description of a format."""
    lines = [f"format {of.name}, version {of.version}"]
    lines += [f"{name} = {each.format}" for name, each in sorted(vars(of.owner).items()) if isinstance(each, Struct)]
    for part in of.parts:
        lines += _described(part, ())
    return "\n".join(lines) + "\n"


def _described(what: Any, within: tuple[Any, ...]) -> Iterator[str]:
    """Yield the lines of a part of a format; those of parts of it are indented."""
    if what in within:
        yield "(as above)"
    elif isinstance(what, str):
        yield from what.strip().splitlines()
    elif isinstance(what, Struct):
        return
    elif isinstance(what, list) and all(isinstance(name, str) for name in what):
        yield from what
    elif isinstance(what, type) and issubclass(what, Enum):
        yield from (f"{each.name} = {each.value!r}" for each in what)
    elif isinstance(what, type) and (fields := _fields(what)):
        for name, kind in fields.items():
            yield f"{name}: {_kind(kind)}"
            for inner in _inner(kind):
                yield from (f"  {line}" for line in _described(inner, (*within, what)))
    else:
        # A parsed Avro schema has copies of its parts.
        plain = {name: of for name, of in what.items() if not name.startswith("__")}
        yield from json.dumps(plain, indent=1).splitlines()


def _fields(of: type) -> dict[str, Any]:
    """Return the stored fields of a class, by name."""
    if dataclasses.is_dataclass(of):
        hints = typing.get_type_hints(of)
        return {each.name: hints[each.name] for each in dataclasses.fields(of) if each.init}
    return typing.get_type_hints(of) if issubclass(of, tuple) and hasattr(of, "_fields") else {}


def _inner(kind: Any) -> Iterator[Any]:
    """Yield the classes in a type that have fields or members."""
    if isinstance(kind, type) and not typing.get_args(kind) and (issubclass(kind, Enum) or _fields(kind)):
        yield kind
    for each in typing.get_args(kind):
        yield from _inner(each)


def _kind(kind: Any) -> str:
    """Return a type without the names of classes: a class may be renamed."""
    if arguments := typing.get_args(kind):
        of = typing.get_origin(kind)
        inside = ", ".join(map(_kind, arguments))
        return inside.replace(", ", " or ") if of in (types.UnionType, typing.Union) else f"{_kind(of)} of {inside}"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "one of"
    if isinstance(kind, type) and _fields(kind):
        return "fields"
    return "..." if kind is ... else "null" if kind is type(None) else str(getattr(kind, "__name__", kind)).lower()


def table() -> str:
    """Return the table for the docs."""
    lines = ["| format | where | version | writer and reader |", "|---|---|---:|---|"]
    for of in FORMATS:
        lines.append(f"| {of.name} | {of.where} | {of.version} | `{of.owner.__name__.removeprefix('arcbeam.')}` |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
