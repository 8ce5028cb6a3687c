"""Transforms that kill their worker in different ways."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Any

import apache_beam as beam

WAYS = {"segfault": "signal 11 (SIGSEGV)", "exit": "exit code 7", "kill": "signal 9 (SIGKILL)"}
"""How a worker dies, and how the error reports it. A kill also represents one by the out-of-memory killer."""


def die(way: str) -> None:
    """End this process."""
    match way:
        case "segfault":
            ctypes.string_at(0)
        case "exit":
            os._exit(7)
        case _:
            os.kill(os.getpid(), signal.SIGKILL)


def same(element: Any) -> Any:
    """Return the element."""
    return element


def dies_at(element: Any, poison: Any, way: str) -> Any:
    """Kill its worker at one element."""
    if element == poison:
        die(way)
    return element


class DiesAt(beam.DoFn):
    """The same as a DoFn that the SDK calls for each element."""

    def __init__(self, poison: Any, way: str) -> None:
        self._poison, self._way = poison, way

    def process(self, element: Any, at: Any = beam.DoFn.TimestampParam) -> list[Any]:
        return [dies_at(element, self._poison, self._way)]
