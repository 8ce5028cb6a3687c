"""Command lines of `arcbeam` that texts print: a user copies them into a shell and runs them.

Owns their quoting. Must not know the commands.
"""

from __future__ import annotations

import shlex


def command_line(command: str, place: str = "", *more: str) -> str:
    """Return a command line of `arcbeam` as a shell takes it.

    Args:
        command: its name, such as "resume".
        place: the folder, URL or path that it is about; "": none. A local path may begin with a dash.
        more: further words, options among them.
    """
    # A command takes a first dash for an option, also in quotes.
    words = [f"./{place}" if place.startswith("-") else place] if place else []
    return shlex.join(["arcbeam", command, *words, *more])
