"""`arcbeam parts`: what runs that died have staged below a path, and never published.

Owns how it is asked for and shown. What there is is told by the staging of the path.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from arcbeam.console.output import Output

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


class _Age(click.ParamType[float]):
    """A duration: 90s, 15m, 24h, 7d."""

    name = "age"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        found = re.fullmatch(r"(\d+)([smhd])", str(value))
        if found is None:
            self.fail(f"{value!r} is no duration; 90s, 15m, 24h and 7d are", param, ctx)
        return float(found[1]) * _UNITS[found[2]]


@click.argument("path")
@click.option("--remove", is_flag=True, help="Remove them, for good.")
@click.option(
    "--older-than",
    type=_Age(),
    default="24h",
    show_default=True,
    metavar="AGE",
    help="With --remove: only what was last written to so long ago, as 90s, 15m, 24h, 7d; on S3, what was begun then.",
)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def parts(out: Output, path: str, remove: bool, older_than: float, options: tuple[str, ...]) -> None:
    """List what was staged for part files below PATH, and is not published: leftovers of runs that died, mostly.

    PATH is what WriteParts was given; OPTIONS are pipeline options that its file system needs, as --s3_endpoint_url. A
    job sweeps what its attempts leave behind. What is here belongs to jobs that run now, that can be resumed (they
    publish it then), or that are dead. Do not remove what a job still has to publish: its records would be lost. The
    age of an upload to S3 is that of its beginning, whatever was sent since: take longer than any takes.
    """
    from apache_beam.options.pipeline_options import PipelineOptions

    from arcbeam.io.parts.places import is_local, staging_for
    from arcbeam.store.blobs.errors import StoreError

    if is_local(path) and not Path(path.removeprefix("file://")).is_dir():
        raise StoreError(f"there is no folder '{path}'", "name the path that WriteParts was given")
    staging = staging_for(path, PipelineOptions(list(options)).get_all_options(drop_default=True))
    found = list(staging.leftovers())
    if remove:
        found = [each for each in found if each.age >= older_than]
        staging.remove(found)
    columns = ["job", "micro_batch", "what", "age", "size", "staged"]
    rows = [dataclasses.asdict(each) | {"what": each.of, "age": round(each.age)} for each in found]
    for row, each in zip(rows, found, strict=True):
        row["size"] = each.size if each.size is not None else ""
    out.table(columns, rows)
    if remove:
        out.progress(f"removed {len(found)} from {path}", removed=len(found))
