"""Plausible mistakes in timers and side inputs; see `mutations`.

Owns the patches. Must not know how a mistake is found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from arcbeam.engine.protocol.reports import TaskReport
from arcbeam.engine.state.inmemorytimers import InMemoryTimers
from arcbeam.engine.state.keyqueue import KeyQueue
from arcbeam.engine.state.timers import Fired, Timers
from arcbeam.engine.task.stagerun import StageRun
from arcbeam.model.files import SideFile
from arcbeam.model.timestamps import MAX_TIMESTAMP, Timestamp
from arcbeam.model.windows import Window
from arcbeam.store.manifest.values import Manifest
from arcbeam.streaming.driver import proposals
from arcbeam.streaming.task.sidefiles import SideFileReader
from simulator.mistakes_of_the_store import Mutation


def _timer_fired_when_equal() -> AbstractContextManager[object]:
    take = Timers.take_event

    def one_later(self: Timers, watermark: Timestamp, expirations: bool = True) -> Fired | None:
        return take(self, watermark if watermark == MAX_TIMESTAMP else Timestamp(watermark + 1), expirations)

    return patch.object(Timers, "take_event", one_later)


def _clock_first() -> AbstractContextManager[object]:
    next = KeyQueue.next

    def by_the_clock(self: KeyQueue, watermark: Timestamp, now: Timestamp) -> Any:
        return self._timers.take_processing(now) or next(self, watermark, now)

    return patch.object(KeyQueue, "next", by_the_clock)


def _fires_where_it_was() -> AbstractContextManager[object]:
    """A timer without a row is kept when it is moved to a later time."""
    return patch.object(Timers, "set", _keeping_imminent(Timers.set))


def _cleared_fires() -> AbstractContextManager[object]:
    """A timer without a row is kept when it is cleared."""
    return patch.object(Timers, "clear", _keeping_imminent(Timers.clear))


def _keeping_imminent(real: Any) -> Any:
    def without_removing(self: Timers, *requested: Any) -> None:
        with patch.object(InMemoryTimers, "remove", lambda self, slot: None):
            real(self, *requested)

    return without_removing


def _payload_kept() -> AbstractContextManager[object]:
    set = Timers.set

    def with_the_first(self: Timers, key: bytes, window: bytes, family: str, fire_at: Timestamp, *more: Any) -> None:
        hold, tag, payload = (*more, "", b"")[:3] if len(more) < 3 else more
        if self.get(key, window, family, tag) == fire_at:
            known = (each for each in self.pending() if (each.key, each.window, each.family) == (key, window, family))
            payload = next(each.payload for each in known if each.tag == tag)
        set(self, key, window, family, fire_at, hold, tag, payload)

    return patch.object(Timers, "set", with_the_first)


def _gone_uncounted() -> AbstractContextManager[object]:
    return patch.object(Timers, "_less", lambda self, index, rank: None)


def _joined_lost() -> AbstractContextManager[object]:
    draft = proposals._side_files

    def without(head: Manifest, reports: Sequence[TaskReport], readers: Any) -> tuple[SideFile, ...]:
        joined = any(report.files.joined for report in reports)
        return tuple(f for f in draft(head, reports, readers) if not (joined and "merged" in f.name))

    return patch.object(proposals, "_side_files", without)


def _first_producer_only() -> AbstractContextManager[object]:
    def of_the_first(self: StageRun, window: Window) -> Any:
        needed = self._sides.needed(self._place.placed.name, window)[:1]
        return next((lot for lot in needed if not self._ready(lot)), None)

    return patch.object(StageRun, "_lacks", of_the_first)


def _all_firings() -> AbstractContextManager[object]:
    def of_all(self: SideFileReader, channel: int, window: bytes, has: Any) -> Any:
        return self._by_channel.get(channel, ())

    return patch.object(SideFileReader, "_files", of_all)


OF_TIMERS_AND_SIDES: Mapping[str, Mutation] = {
    "a timer fired at <=": _timer_fired_when_equal,
    "processing timers fired before event timers": _clock_first,
    "a moved timer that also fires at its old time": _fires_where_it_was,
    "a cleared timer that fires": _cleared_fires,
    "a timer that keeps its first payload": _payload_kept,
    "removed timers still counted": _gone_uncounted,
    "a merged file of a side input left out": _joined_lost,
    "all firings of a side input read instead of the newest": _all_firings,
    "a side input that waits for only one producer": _first_producer_only,
}
"""The mistakes by name."""
