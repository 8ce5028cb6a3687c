"""Transforms that kill their worker, in the ways in which workers die."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Any

import apache_beam as beam

WAYS = {"segfault": "signal 11 (SIGSEGV)", "exit": "exit code 7", "kill": "signal 9 (SIGKILL)"}
"""How a worker dies, and how the error reports it. A kill stands for that of the out-of-memory killer, too."""


def die(way: str) -> None:
    """Ends this process."""
    match way:
        case "segfault":
            ctypes.string_at(0)
        case "exit":
            os._exit(7)
        case _:
            os.kill(os.getpid(), signal.SIGKILL)


def same(element: Any) -> Any:
    """A transform that does no harm."""
    return element


def dies_at(element: Any, poison: Any, way: str) -> Any:
    """Kills its worker when it gets one element."""
    if element == poison:
        die(way)
    return element


class DiesAt(beam.DoFn):
    """The same, where the SDK calls the DoFn for each element."""

    def __init__(self, poison: Any, way: str) -> None:
        self._poison, self._way = poison, way

    def process(self, element: Any, at: Any = beam.DoFn.TimestampParam) -> list[Any]:
        return [dies_at(element, self._poison, self._way)]
