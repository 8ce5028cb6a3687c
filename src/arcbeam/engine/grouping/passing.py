"""Windows that begin and end within one step: what comes to them goes on without having been in the state.

Owns what has come to such windows, until it goes on. Every pane is the one that `engine.grouping.singlepane` would have
given. Must not know what is in an element.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from arcbeam.engine.grouping.effects import EmitPane
from arcbeam.engine.grouping.groupings import Grouping, Together
from arcbeam.engine.grouping.singlepane import ONLY
from arcbeam.model.timestamps import Timestamp
from arcbeam.model.windows import Window

MOST_PANES: Final = 1000
MOST_BYTES: Final = 1 << 20
"""What goes on at once, about."""


class PassingValues:
    """The contents of a pane that was never in the state: the elements, encoded; may be iterated again and again.

    Attributes:
        parts: as they came.
    """

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[Together]) -> None:
        self.parts = parts

    def __iter__(self) -> Iterator[bytes]:
        for part in self.parts:
            for value, _, _, _ in part:
                yield value

    @property
    def size(self) -> int:
        """How many bytes they take, about."""
        return sum(part.size for part in self.parts)


class Passing:
    """What passes through a grouping in a step.

    Args:
        grouping: whose it is.
        before: the input watermark until all that comes has come.
        ahead: where it is then.
    """

    __slots__ = ("_ahead", "_before", "_group", "_grouping", "_groups", "_latest", "_none_stored")

    def __init__(self, grouping: Grouping, before: Timestamp, ahead: Timestamp) -> None:
        self._grouping, self._before, self._ahead = grouping, before, ahead
        self._none_stored = grouping.is_empty()
        # By window, None for those that do not pass; of each, by key.
        self._groups: dict[Window, dict[bytes, list[Together]] | None] = {}
        self._latest: Window | None = None
        self._group: dict[bytes, list[Together]] | None = None

    def take(self, key: bytes, elements: Together) -> bool:
        """Takes elements of a key; not if they have to go to the state.

        Args:
            key: of all of them.
            elements: at least one.
        """
        window = elements.window
        if window is None:
            return False
        if window is not self._latest:
            self._latest, self._group = window, self._of(window)
        group = self._group
        if group is None:
            return False
        held = group.get(key)
        if held is not None:
            held.append(elements)
            return True
        if not self._none_stored and self._grouping.is_stored(key, window):
            return False
        group[key] = [elements]
        return True

    def _of(self, window: Window) -> dict[bytes, list[Together]] | None:
        if window not in self._groups:
            end, expiry = self._grouping.ends(window)
            self._groups[window] = {} if self._before <= end and self._ahead > expiry else None
        return self._groups[window]

    def withdraw(self, key: bytes) -> Iterator[Together]:
        """What was taken of a key, in every window: it is not here any more. More of it comes, and is stored."""
        self._none_stored = False
        for group in self._groups.values():
            if group and key in group:
                yield from group.pop(key)

    def ends(self) -> list[tuple[Timestamp, Window]]:
        """The windows that something was taken of, and their ends; in the order of these."""
        ends = ((self._grouping.ends(window)[0], window) for window, group in self._groups.items() if group)
        return sorted(ends, key=lambda each: (each[0], each[1].ordered()))

    def panes(self, window: Window) -> Iterator[list[EmitPane]]:
        """The panes of a window, some at once; they are not here any more."""
        group = self._groups[window]
        end, _ = self._grouping.ends(window)
        panes: list[EmitPane] = []
        size = 0
        while group:
            key, parts = group.popitem()
            panes.append(EmitPane(key, window, PassingValues(parts), end, ONLY))
            size += parts[0].size if len(parts) == 1 else panes[-1].contents.size
            if len(panes) >= MOST_PANES or size >= MOST_BYTES:
                yield panes
                panes, size = [], 0
        if panes:
            yield panes
