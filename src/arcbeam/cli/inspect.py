"""`arcbeam inspect`: shows the content of a streaming job's folder.

Owns the output. `store.log.inspection` collects the content.
"""

from __future__ import annotations

import contextlib
import dataclasses
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click

from arcbeam.cli.status import cause_lines
from arcbeam.console.commandlines import command_line
from arcbeam.console.output import CommandOutput, TextOutput
from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from arcbeam.streaming.status.headline import headline
from arcbeam.streaming.status.plain import plain
from arcbeam.streaming.status.words import ago, bytes_shown, overdue, recorded

if TYPE_CHECKING:
    from arcbeam.store.blobs.durable import DurableBlobs
    from arcbeam.store.log.inspection import Inspection
    from arcbeam.streaming.status.status import Status

_NAMED = {
    MIN_TIMESTAMP: "beginning of time",
    MAX_TIMESTAMP: "end of time",
    END_OF_GLOBAL_WINDOW: "end of global window",
}


@click.argument("path")
@click.option("--micro-batch", type=int, help="Show the job after this micro-batch (default: the newest).")
@click.option("--savepoint", default="", help="Show the job after this savepoint.")
@click.option(
    "--micro-batches", type=click.IntRange(min=0), default=10, show_default=True, help="Micro-batches to list."
)
@click.option("--check", is_flag=True, help="Read all files of the micro-batch; exit with 1 if one cannot be read.")
def inspect(
    out: CommandOutput, path: str, micro_batch: int | None, savepoint: str, micro_batches: int, check: bool
) -> None:
    """Show the content of a streaming job's folder.

    Prints micro-batches, watermarks and what holds them, sizes of state, and savepoints.

    PATH is the job's folder or URL (s3://, gs://, abfs://, hdfs://), or the path of a savepoint. The command only
    reads; the job may be running. If a manifest is damaged, it shows what is readable and exits with 1. With --json,
    times are microseconds since 1970.
    """
    from arcbeam.store.blobs.backends import open_blobs
    from arcbeam.store.log.inspection import inspect as look
    from arcbeam.store.log.savepoints import split_path

    path, of_path = split_path(path)
    savepoint = savepoint or of_path
    if micro_batch is not None and savepoint:
        raise click.UsageError("--micro-batch and --savepoint exclude each other")
    blobs = open_blobs(path)
    found = look(blobs, micro_batch=micro_batch, savepoint=savepoint, micro_batches=micro_batches, check=check)
    status = _status(blobs, found.micro_batch)
    if isinstance(out, TextOutput):
        _show(out, found, status, newest=micro_batch is None and not savepoint)
    else:
        name = found.job_graph.name if found.job_graph else ""
        out.record({"name": name, **dataclasses.asdict(found), "causes": plain(status.causes) if status else []})
    if found.damaged or found.problems:
        click.get_current_context().exit(1)


def _status(blobs: DurableBlobs, micro_batch: int) -> Status | None:
    """Return the job's status after a micro-batch; None if its manifest was removed."""
    from arcbeam.store.blobs.errors import StoreError
    from arcbeam.store.log.chain import read_manifest
    from arcbeam.streaming.status.status import status_of

    with contextlib.suppress(StoreError):
        return status_of(read_manifest(blobs, micro_batch))
    return None


def _show(out: TextOutput, found: Inspection, status: Status | None, *, newest: bool) -> None:
    for damage in found.damaged:
        out.text(damage)
    if found.damaged:
        out.text(f"showing micro-batch {found.micro_batch}, the newest readable one\n")
    when = f"committed at {_time(found.time)} ({ago(found.time)})" if status is None else recorded(status, _time)
    kind = "" if found.kind == "micro-batch" else f"{found.kind}; "
    out.record(
        {
            # Logs and `arcbeam resume` show the name; the folder has the id.
            "job": f"{found.job_graph.name if found.job_graph else found.job} in {found.location}"
            + (f" (id {found.job})" if found.job_graph else ""),
            "micro_batch": f"{found.micro_batch} ({kind}job: {found.mode}), {when}",
            "driver": f"epoch {found.epoch}" + (f", {found.driver}" if found.driver else ""),
            **({"ended": str(found.ended)} if found.ended else {}),
            "to publish": found.committables,
            **_job_graph(found),
            "side inputs": f"{found.side_files} files, {bytes_shown(found.side_bytes)}",
        }
    )
    if status and newest and not found.ended and overdue(status) is not None:
        out.text(headline(replace(status, job_graph=found.job_graph is not None, folder=found.location)).line)
    out.text("\nwatermarks and holds")
    rows = []
    for stage in found.stages:
        row = {"stage": stage.stage, "upstream": _time(stage.upstream), "input": _time(stage.input)}
        outputs = "; ".join(
            (f"{of.output}: " if len(stage.outputs) > 1 else "") + _time(of.watermark) for of in stage.outputs
        )
        holds = "; ".join(f"{of.count} from {_time(of.earliest)}: {of.what}" for of in stage.holds)
        restrictions = "; ".join(
            f"{of.live} of size {of.size:g}, next due {_time(of.next_due)}" for of in stage.residuals
        )
        rows.append({**row, "output": outputs, "holds": holds, "restrictions": restrictions})
    out.table(["stage", "upstream", "input", "output", "holds", "restrictions"], rows)
    out.text("")
    for line in cause_lines(status) if status else ():
        out.text(line)
    out.text("\nstate")
    out.table(
        ["level", "shards", "files", "entries", "deleted", "size", "largest shard"],
        [
            {
                "level": level.level,
                "shards": f"{level.shards} of {found.shards}",
                "files": level.files,
                "entries": level.entries,
                "deleted": level.tombstones,
                "size": bytes_shown(level.size),
                "largest shard": f"{level.largest}: {bytes_shown(level.largest_size)}",
            }
            for level in found.levels
        ],
    )
    if found.requests:
        out.text("\nopen requests")
        out.table(
            ["what", "savepoint", "requested at micro-batch"],
            [
                {"what": each.what, "savepoint": each.savepoint or "-", "requested at micro-batch": each.micro_batch}
                for each in found.requests
            ],
        )
    if found.savepoints:
        out.text("\nsavepoints")
        out.table(
            ["name", "micro_batch", "micro-batch started at"],
            [
                {"name": pin.name, "micro_batch": pin.micro_batch, "micro-batch started at": _time(pin.time)}
                for pin in found.savepoints
            ],
        )
    out.text("\nmicro-batches")
    out.table(
        ["micro_batch", "epoch", "kind", "mode", "started at", "written", "to publish"],
        [
            {
                "micro_batch": micro_batch.micro_batch,
                "epoch": micro_batch.epoch,
                "kind": micro_batch.kind,
                "mode": micro_batch.mode,
                "started at": _time(micro_batch.time),
                "written": bytes_shown(micro_batch.written),
                "to publish": micro_batch.committables,
            }
            for micro_batch in found.micro_batches
        ],
    )
    if found.problems is not None:
        out.text("\nfiles: " + ("complete and readable" if not found.problems else "damaged or missing"))
        for problem in found.problems:
            out.text(f"  - {problem}")


def _job_graph(found: Inspection) -> dict[str, str]:
    if found.job_graph is None:
        return {"resume": "run its script again: the folder holds no job graph"}
    versions = ", ".join(f"{name.capitalize()} {version}" for name, version in found.job_graph.versions.items())
    graph = f"'{found.job_graph.name}' of {versions}"
    return {"resume": command_line("resume", found.location), "job graph": graph}


def _time(moment: Timestamp | None) -> str:
    """Return a time for people, in UTC, as short as possible without losing microseconds."""
    if moment is None:
        return "-"
    if moment in _NAMED:
        return _NAMED[moment]
    try:
        when = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=moment)
    except OverflowError:
        return f"{moment} µs"
    return when.isoformat(sep=" ").replace("+00:00", "Z")
