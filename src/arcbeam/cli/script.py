"""Runs a user's script as `python SCRIPT` does.

Owns how its errors are printed: with the script's own frames, without those of the command that runs it.
"""

from __future__ import annotations

import runpy
import sys
import traceback
from pathlib import Path

from arcbeam.cli.scriptoptions import Arguments


def run_script(script: Path, arguments: list[str]) -> None:
    """Run a script as `__main__`, with its folder first on the path.

    Args:
        script: the file.
        arguments: of the script; they follow its name in `sys.argv`.

    Raises:
        BaseException: each exception of the script.
    """
    sys.argv = Arguments([str(script), *arguments])
    sys.path.insert(0, str(script.resolve().parent))
    runpy.run_path(str(script), run_name="__main__")


def print_error(error: Exception, script: Path) -> None:
    """Print an exception of a script to stderr; its traceback begins with the script's own frame."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != str(script):
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace)
