"""DoFns that record in a file when they are called at the end of their job."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.transforms import userstate

import arcbeam


class Tells(beam.DoFn, arcbeam.GracefulShutdown):
    """Passes elements on, and writes a line for each call at the end.

    Args:
        name: its name in the file.
        calls: the file.
        at_end: its output at the end.
        fails: whether `shutdown` raises.
        hangs: seconds that `shutdown` takes.
    """

    def __init__(self, name: str, calls: Path, *at_end: Any, fails: bool = False, hangs: float = 0.0) -> None:
        self._name, self._calls, self._at_end = name, str(calls), at_end
        self._fails, self._hangs = fails, hangs

    def process(self, element: Any) -> Iterator[Any]:
        if element == 13:
            raise ValueError("unlucky")
        yield element

    def prepare_to_shutdown(self) -> Iterable[Any] | None:
        self._tell("prepares")
        return self._at_end

    def shutdown(self) -> None:
        self._tell("shuts down")
        time.sleep(self._hangs)
        if self._fails:
            raise OSError("gone")

    def _tell(self, what: str) -> None:
        with Path(self._calls).open("a") as file:
            file.write(f"{self._name} {what}\n")


class TellsAndCounts(Tells):
    """The same; it also outputs how many elements its key has had when the window ends."""

    SEEN = userstate.CombiningValueStateSpec("seen", sum)
    END = userstate.TimerSpec("end", userstate.TimeDomain.WATERMARK)

    def process(
        self,
        element: Any,
        seen: Any = beam.DoFn.StateParam(SEEN),
        end: Any = beam.DoFn.TimerParam(END),
        of: Any = beam.DoFn.WindowParam,
    ) -> Iterator[Any]:
        seen.add(1)
        end.set(of.max_timestamp())
        yield element

    @userstate.on_timer(END)
    def over(self, key: Any = beam.DoFn.KeyParam, seen: Any = beam.DoFn.StateParam(SEEN)) -> Iterator[Any]:
        yield f"count of {key}", seen.read()


def called(calls: Path) -> list[str]:
    """Return the calls in their order, each once: a stage may be open in several workers."""
    return list(dict.fromkeys(calls.read_text().splitlines())) if calls.exists() else []
