"""What a disk may contain after a power failure: records the file operations of a test, and replays their outcomes.

`Recording` records operations below a folder while it is active: files created, linked, renamed, removed, folders
created and removed, and each fsync. `each_outcome` checks what may be left if the power fails after any of them.

The model is that of POSIX, and slightly worse than the usual file systems:

- The content of a file is safe once the file was synced. Otherwise the disk has what was synced last, or half of the
  new content, or all of it.
- A name (created, renamed, removed) is safe once its folder was synced. Otherwise each name is kept or lost
  independently. Only changes of the same name keep their order.
- A rename is one change, also between two folders: both names change, or none. (This holds on ext4, XFS, Btrfs, ZFS.)
- Syncing a file makes no name safe, and syncing a folder makes neither contents nor the folder's own name safe.

Operations of other processes, and those of libraries that do not use `os` and `open`, are not recorded.
"""

from __future__ import annotations

import builtins
import io
import itertools
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

Entry = tuple[int, str]
"""A folder, and a name in it."""
State = dict[str, bytes | None]
"""Contents by paths below the folder; None: a folder."""


@dataclass(frozen=True, slots=True)
class Named:
    """A change of names in folders, all or none. By number of a node; None: the name is removed."""

    changes: tuple[tuple[Entry, int | None], ...]


@dataclass(frozen=True, slots=True)
class Content:
    """A file has this content; `synced`: also on the disk."""

    node: int
    data: bytes
    synced: bool


@dataclass(frozen=True, slots=True)
class FolderSynced:
    """The names in a folder are on the disk."""

    node: int


@dataclass(frozen=True, slots=True)
class Note:
    """What the code under test has reported so far."""

    what: Any


Event = Named | Content | FolderSynced | Note


@dataclass
class Disk:
    """What is safe on the disk, and what may be on it.

    Attributes:
        names: safe names, by folder.
        pending: changes of names that are not synced, in order.
        contents: contents of files: the synced one, and the newest.
        notes: what was reported.
    """

    names: dict[int, dict[str, int]]
    pending: list[Named] = field(default_factory=list)
    contents: dict[int, tuple[bytes | None, bytes]] = field(default_factory=dict)
    notes: list[Any] = field(default_factory=list)

    def apply(self, event: Event) -> None:
        """Apply one more operation."""
        match event:
            case Named(changes):
                for _, node in changes:
                    if node is not None:
                        self.names.setdefault(node, {})
                self.pending.append(event)
            case Content(node, data, synced):
                before = self.contents.get(node, (None, b""))[0]
                self.contents[node] = (data if synced else before, data)
            case FolderSynced(node):
                self._sync(node)
            case Note(what):
                self.notes.append(what)

    def _sync(self, folder: int) -> None:
        safe: set[int] = set()
        keys: set[Entry] = set()
        for at in range(len(self.pending) - 1, -1, -1):
            touched = {entry for entry, _ in self.pending[at].changes}
            if touched & keys or any(of == folder for of, _ in touched):
                safe.add(at)
                keys |= touched
        for at in sorted(safe):
            _change(self.names, self.pending[at])
        self.pending = [each for at, each in enumerate(self.pending) if at not in safe]

    def extremes(self) -> Iterator[State]:
        """Yield the state without any unsafe name, and the states with all of them, with and without their contents."""
        yield self._outcome(lambda at: False, "lost")
        yield self.all_kept()
        for how in ("lost", "half"):
            yield self._outcome(lambda at: True, how)

    def all_kept(self) -> State:
        """Return the state if the process is killed but the power stays on."""
        return self._outcome(lambda at: True, "kept")

    def sample(self, chance: random.Random) -> State:
        """Return one of all outcomes at random."""
        likely = chance.choice((0.0, 0.2, 0.5, 0.8, 1.0))
        flips = [chance.random() < likely for _ in self.pending]
        return self._outcome(lambda at: flips[at], chance.choice(("lost", "half", "kept")))

    def _outcome(self, keep: Callable[[int], bool], how: str) -> State:
        names = {node: dict(entries) for node, entries in self.names.items()}
        lost: set[Entry] = set()
        for at, change in enumerate(self.pending):
            touched = {entry for entry, _ in change.changes}
            if keep(at) and not touched & lost:
                _change(names, change)
            else:
                lost |= touched
        found: State = {}
        self._collect(names, 0, "", how, found)
        return found

    def _collect(self, names: dict[int, dict[str, int]], folder: int, path: str, how: str, into: State) -> None:
        for name, node in sorted(names[folder].items()):
            below = f"{path}/{name}" if path else name
            if node in self.contents:
                synced, newest = self.contents[node]
                into[below] = newest if synced == newest else _left(synced, newest, how)
            else:
                into[below] = None
                self._collect(names, node, below, how, into)


def _left(synced: bytes | None, newest: bytes, how: str) -> bytes:
    match how:
        case "kept":
            return newest
        case "half":
            return newest[: len(newest) // 2]
    return synced or b""


def _change(names: dict[int, dict[str, int]], change: Named) -> None:
    for (folder, name), node in change.changes:
        if node is None:
            names[folder].pop(name, None)
        else:
            names[folder][name] = node


class Recording:
    """Records operations below a folder while it is active (`with`).

    Args:
        root: an existing folder, which is safe on the disk.

    Attributes:
        events: the operations, in order.
        before: called before each operation that changes or syncs something; may raise to end the operation.
    """

    def __init__(self, root: Path) -> None:
        self.root = Path(os.path.realpath(root))
        self.events: list[Event] = []
        self.before: Callable[[], None] = lambda: None
        self._numbers = itertools.count(1)
        self._nodes: dict[str, int] = {"": 0}
        self._files: set[int] = set()
        self._patch = pytest.MonkeyPatch()
        self._adopt()

    def note(self, what: Any) -> None:
        """Record what the code under test has reported."""
        self.events.append(Note(what))

    def __enter__(self) -> Self:
        calls = (
            ("open", self._os_open),
            ("mkdir", self._mkdir),
            ("rmdir", self._removes),
            ("unlink", self._removes),
            ("remove", self._removes),
            ("rename", self._renames),
            ("replace", self._renames),
            ("link", self._links),
            ("fsync", self._fsync),
            ("fdatasync", self._fsync),
        )
        for name, wrap in calls:
            self._patch.setattr(os, name, wrap(getattr(os, name)))
        for where in (builtins, io):
            self._patch.setattr(where, "open", self._opens(builtins.open if where is builtins else io.open))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._patch.undo()

    def disks(self) -> Iterator[Disk]:
        """Yield the disk after each event, from the beginning; always the same object, changed."""
        disk = Disk({0: {}})
        for event in self.events:
            disk.apply(event)
            yield disk

    def _adopt(self) -> None:
        """Treat what exists as safe."""
        for folder, folders, files in os.walk(self.root):
            for name in (*folders, *files):
                path = Path(folder, name)
                below = str(path.relative_to(self.root))
                node = self._new(below, is_file=name in files)
                self.events.append(Named((((self._folder(below)), node),)))
                if name in files:
                    self.events.append(Content(node, path.read_bytes(), True))
            self.events.append(FolderSynced(self._nodes[_below(str(self.root), folder) or ""]))

    def _new(self, below: str, *, is_file: bool) -> int:
        node = self._nodes[below] = next(self._numbers)
        if is_file:
            self._files.add(node)
        return node

    def _folder(self, below: str) -> Entry:
        above, _, name = below.rpartition("/")
        return self._nodes[above], name

    def _at(self, path: Any) -> str | None:
        """Return the path below the folder; None if it is elsewhere."""
        if isinstance(path, int):
            return None
        return _below(str(self.root), os.path.abspath(os.fspath(path)))

    def _written(self, below: str, *, synced: bool = False) -> None:
        node = self._nodes.get(below)
        if node in self._files and (self.root / below).exists():
            assert node is not None
            with _reading(self.root / below) as data:
                self.events.append(Content(node, data, synced))

    def _made(self, below: str) -> None:
        node = self._new(below, is_file=True)
        self.events += [Content(node, b"", False), Named(((self._folder(below), node),))]

    def _os_open(self, real: Any) -> Any:
        def call(path: Any, flags: int, *more: Any, **options: Any) -> int:
            below = None if options.get("dir_fd") is not None else self._at(path)
            writes = below is not None and bool(flags & (os.O_CREAT | os.O_TRUNC))
            if writes:
                self.before()
            number: int = real(path, flags, *more, **options)
            if below is not None and writes and below not in self._nodes:
                self._made(below)
            if writes:
                self.before()  # it exists, and is empty
            return number

        return call

    def _opens(self, real: Any) -> Any:
        def call(file: Any, mode: str = "r", *more: Any, **options: Any) -> Any:
            below = self._at(file) if not isinstance(file, int) else None
            writes = below is not None and any(each in mode for each in "wxa+")
            if writes:
                self.before()
            opened = real(file, mode, *more, **options)
            if below is not None and writes and below not in self._nodes:
                self._made(below)
            if writes:
                self.before()  # it exists, and is empty
            return opened

        return call

    def _mkdir(self, real: Any) -> Any:
        def call(path: Any, *more: Any, **options: Any) -> None:
            below = self._at(path)
            if below is not None and below not in self._nodes:
                self.before()
            real(path, *more, **options)
            if below is not None:
                self.events.append(Named(((self._folder(below), self._new(below, is_file=False)),)))

        return call

    def _removes(self, real: Any) -> Any:
        def call(path: Any, *more: Any, **options: Any) -> None:
            below = None if options.get("dir_fd") is not None else self._at(path)
            if below in self._nodes:
                self.before()
            real(path, *more, **options)
            if below is not None:
                self.events.append(Named(((self._folder(below), None),)))
                del self._nodes[below]

        return call

    def _renames(self, real: Any) -> Any:
        def call(source: Any, target: Any, **options: Any) -> None:
            old, new = self._at(source), self._at(target)
            if old in self._nodes:
                self.before()
            if old in self._nodes:
                self._written(old)
            real(source, target, **options)
            if new is None:
                assert old is None, "a rename out of the folder is not modelled"
                return
            if old is not None and self._nodes[old] == self._nodes.get(new):
                return  # two names of one file: no change
            if old is None:
                self._made(new)
                self._written(new)
                return
            node = self._nodes.pop(old)
            assert node in self._files, "a rename of a folder is not modelled"
            gone = self._folder(old)
            self._nodes[new] = node
            self.events.append(Named(((gone, None), (self._folder(new), node))))

        return call

    def _links(self, real: Any) -> Any:
        def call(source: Any, target: Any, **options: Any) -> None:
            old, new = self._at(source), self._at(target)
            if new is not None:
                self.before()
            if old in self._nodes:
                self._written(old)
            real(source, target, **options)
            if new is None:
                return
            if old is None:
                self._made(new)
                self._written(new)
                return
            self._nodes[new] = self._nodes[old]
            self.events.append(Named(((self._folder(new), self._nodes[new]),)))

        return call

    def _fsync(self, _: Any) -> Any:
        """Do not sync: that takes time, and the power stays on."""

        def call(number: int) -> None:
            # Linux shows the name by which a descriptor was opened, or the new one if it was renamed.
            below = self._at(os.readlink(f"/proc/self/fd/{number}"))
            if below in self._nodes:
                self.before()
            if below is None or below not in self._nodes:
                return
            node = self._nodes[below]
            if node in self._files:
                self._written(below, synced=True)
            else:
                self.events.append(FolderSynced(node))

        return call


def _below(root: str, path: str) -> str | None:
    if path == root:
        return ""
    return path[len(root) + 1 :] if path.startswith(root + os.sep) else None


@contextmanager
def _reading(path: Path) -> Iterator[bytes]:
    # Not with `open`, which is recorded.
    number = os.open(path, os.O_RDONLY)
    try:
        yield b"".join(iter(lambda: os.read(number, 1 << 20), b""))
    finally:
        os.close(number)


def restore(state: State, folder: Path) -> None:
    """Write a state to a folder."""
    folder.mkdir()
    for path, data in state.items():
        if data is None:
            (folder / path).mkdir(exist_ok=True)
        else:
            (folder / path).write_bytes(data)


def each_outcome(
    recording: Recording,
    folder: Path,
    check: Callable[[Path, Sequence[Any]], None],
    samples: int,
    *,
    extremes: bool = False,
) -> int:
    """Check what may be left after power failures.

    Args:
        recording: the recorded operations.
        folder: folder for the outcomes; each has its own folder below it, removed afterwards.
        check: raises if what is left, after these notes, breaks a promise.
        samples: number of random outcomes after random events. What a kill leaves after each removed name is also
            checked.
        extremes: whether to check `Disk.extremes` after each event.

    Returns:
        The number of different outcomes.
    """
    chance, seen, number = random.Random(1), set[int](), itertools.count()
    chosen = Counter(chance.choices(range(len(recording.events)), k=samples))
    for at, disk in enumerate(recording.disks()):
        states = [disk.sample(chance) for _ in range(chosen[at])]
        if extremes:
            states += disk.extremes()
        elif isinstance(event := recording.events[at], Named) and any(node is None for _, node in event.changes):
            states.append(disk.all_kept())
        for state in states:
            key = hash((tuple(sorted(state.items())), len(disk.notes)))
            if key in seen:
                continue
            seen.add(key)
            place = folder / str(next(number))
            restore(state, place)
            try:
                check(place, tuple(disk.notes))
            except BaseException as e:
                left = "\n".join(f"  {path}{'/' if data is None else f': {len(data)}'}" for path, data in state.items())
                e.add_note(f"after event {at} ({recording.events[at]!r:.200}), the power failed, and left:\n{left}")
                raise
            shutil.rmtree(place)
    return len(seen)
