"""`arcbeam sample`: elements of the outputs of a stage of a running job.

Owns the command's arguments and output. `arcbeam.streaming.status.samples` owns the request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from arcbeam.cli.control import opened
from arcbeam.console.output import CommandOutput, TextOutput


@click.argument("folder")
@click.argument("stage")
@click.option(
    "--wait",
    "seconds",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    default=30.0,
    show_default=True,
    help="Seconds to wait for elements.",
)
def sample(out: CommandOutput, folder: str, stage: str, seconds: float) -> None:
    """Show up to five elements of each output of STAGE, with timestamp, windows and pane.

    FOLDER is the folder or URL of a running streaming job with --page_samples, STAGE a name in `arcbeam status`.
    A micro-batch in which the stage has elements takes them: it opens the stage's DoFns once more, and runs slower. If
    user code fails, its element is shown.
    """
    from arcbeam.streaming.status.samples import sampled

    found = sampled(opened(folder), stage, seconds)
    if not isinstance(out, TextOutput):
        out.text("", stage=stage, outputs=found)
        return
    for output in found:
        out.text(output["output"])
        if (failure := output.get("failure")) is not None:
            out.text(f"  failed: {failure['error']}")
            out.text(f"  element: {failure['value'] or 'unknown'}")
        for element in output.get("elements", ()):
            out.text(f"  {_place(element)}\n    {element['value']}")


def _place(element: Mapping[str, Any]) -> str:
    from arcbeam.streaming.status.words import shown

    pane = f"; pane: {element['pane']}" if element["pane"] else ""
    return f"{shown(element['time'])} in {', '.join(element['windows'])}{pane}"
