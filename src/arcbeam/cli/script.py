"""A user's script, run as `python SCRIPT` would run it.

Owns how its errors are told: with the script's own frames, not those of the command that runs it.
"""

from __future__ import annotations

import runpy
import sys
import traceback
from pathlib import Path

from arcbeam.cli.scriptoptions import Arguments


def run_script(script: Path, arguments: list[str]) -> None:
    """Runs a script as `__main__`, with its folder first on the path.

    Args:
        script: the file.
        arguments: what it finds in `sys.argv` behind its name.

    Raises:
        BaseException: what the script raises.
    """
    sys.argv = Arguments([str(script), *arguments])
    sys.path.insert(0, str(script.resolve().parent))
    runpy.run_path(str(script), run_name="__main__")


def tell(error: Exception, script: Path) -> None:
    """Prints what a script has raised to stderr, beginning with the script's own frame."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != str(script):
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace)
