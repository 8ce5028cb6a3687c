"""`arcbeam parts`: lists staged part files below a path that no job has published.

Owns the arguments and the output. The path's staging (`io.parts.places`) finds the files.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from arcbeam.console.output import CommandOutput

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


class _Age(click.ParamType[float]):
    """A duration: 90s, 15m, 24h, 7d."""

    name = "age"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        found = re.fullmatch(r"(\d+)([smhd])", str(value))
        if found is None:
            self.fail(f"{value!r} is not a duration such as 90s, 15m, 24h or 7d", param, ctx)
        return float(found[1]) * _UNITS[found[2]]


@click.argument("path")
@click.option("--remove", is_flag=True, help="Remove the listed files permanently.")
@click.option(
    "--older-than",
    type=_Age(),
    default="24h",
    show_default=True,
    metavar="AGE",
    help="With --remove: only files of at least this age, such as 90s, 15m, 24h, 7d. The age counts from the last "
    "write; on S3, from the beginning of the upload.",
)
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[PIPELINE_OPTIONS]...")
def parts(out: CommandOutput, path: str, remove: bool, older_than: float, options: tuple[str, ...]) -> None:
    """List files that WriteParts has written below PATH, but not yet moved to their final names (unpublished).

    Most are leftovers of killed runs.

    PATH is the path that WriteParts got. PIPELINE_OPTIONS are options of its file system, such as --s3_endpoint_url.
    Remove files only if no job that writes to PATH is running or will be resumed: it would lose records. `arcbeam
    status` shows whether a streaming job is running. On S3, the age of a file counts from the start of its upload, so
    choose an AGE longer than your longest upload.
    """
    from apache_beam.options.pipeline_options import PipelineOptions

    from arcbeam.errors import ArcbeamError
    from arcbeam.io.parts.places import is_local, staging_for
    from arcbeam.options import underscored
    from arcbeam.secrets import without_credentials
    from arcbeam.store.blobs.errors import StoreError

    if (shown := without_credentials(path)) != path:
        raise StoreError(
            f"cannot list the files below '{shown}': the path contains credentials",
            "give the path of WriteParts; pass credentials as options (--s3_access_key_id, --s3_secret_access_key) or "
            "in the environment",
        )
    if is_local(path) and not Path(path.removeprefix("file://")).is_dir():
        raise StoreError(f"there is no folder '{path}'", "give the same path as to WriteParts")
    staging = staging_for(
        path, PipelineOptions([underscored(option) for option in options]).get_all_options(drop_default=True)
    )
    try:
        found = list(staging.leftovers())
        if remove:
            found = [each for each in found if each.age >= older_than]
            staging.remove(found)
    except ArcbeamError:
        raise
    except Exception as error:  # each file system has its own
        raise StoreError(
            f"cannot {'remove' if remove else 'list'} the files below '{path}': {error}",
            "check the path, and that its file system has credentials: options such as --s3_access_key_id, or the "
            "environment",
        ) from error
    columns = ["job", "micro_batch", "what", "age", "size", "staged"]
    rows = [dataclasses.asdict(each) | {"what": each.of, "age": round(each.age)} for each in found]
    for row, each in zip(rows, found, strict=True):
        row["size"] = each.size if each.size is not None else ""
    out.table(columns, rows)
    if remove:
        out.progress(f"removed {len(found)} from {path}", removed=len(found))
