"""The main module of a process that user code spawns in a worker; see `spawned`. Importing it enters the script."""

from __future__ import annotations

from typing import Any

from arcbeam.harness.encoding.script import spawned
from arcbeam.harness.encoding.script.mainmodule import MainModule
from arcbeam.harness.encoding.script.space import look_up

MainModule(spawned.received).install()


def __getattr__(name: str) -> Any:
    return look_up(name)
