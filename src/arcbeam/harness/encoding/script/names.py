"""The names of a script's `__main__`, pickled one by one for the workers.

Owns the driver's side: which names are sent, and in which form. In a name's pickle, other names of the script are
references. So each object is sent once, and an object that cannot be pickled does not stop the others. Must not know
what a worker makes of them (`mainmodule`).
"""

from __future__ import annotations

import base64
import binascii
import bz2
import copyreg
import dis
import functools
import io
import logging
import pickle
import re
import sys
import types
import typing
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from apache_beam.internal import cloudpickle_pickler
from apache_beam.internal.cloudpickle import cloudpickle

_LOG = logging.getLogger("arcbeam.mainmodule")

MAIN: Final = "__main__"
CHILD_MAIN: Final = "__mp_main__"
"""The script in a process that `multiprocessing` starts by "spawn" or "forkserver"."""
SCRIPT_MODULES: Final = (MAIN, CHILD_MAIN)
GLOBALS: Final = ("globals",)
"""In the place of the script's dict of globals in a pickle."""

_NAME_BYTES_MAX = 1 << 20
"""Of a pickled value; a larger one holds data that elements do not need."""
_ALL_BYTES_MAX = 16 << 20
_SEARCHED_BYTES_MAX = 1 << 20
"""In a longer pickle, names are not looked for: it may have any."""
_ATOMS = (bool, int, float, complex, str, bytes, type(None), type(...), type(NotImplemented))
"""Types of values that Python may make once for several names."""
_UNNAMED = frozenset({"__builtins__", "__name__", "__spec__", "__loader__", "__getattr__"})
_PICKLES = re.compile(rb"(?:eN|eJ|Qlpo)[A-Za-z0-9+/]{8,}={0,2}")
"""Pickles as the SDK makes them: base64 of zlib or bz2."""
_WORDS = re.compile(rb"(?:\x8c.|X..\0\0|c__(?:mp_)?main__\n)([A-Za-z_]\w*)", re.DOTALL)
"""Strings and global names in a pickle."""
_IDENTIFIERS = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class MainName:
    """A name of the script with its value.

    Attributes:
        name: the name.
        data: the pickled value. References (`persistent_load`) are names, and `GLOBALS`.
        uses: the globals that functions in the value read when they are called.
        class_id: the SDK's id of a class or type variable; "" for other values.
    """

    name: str
    data: bytes = field(repr=False)
    uses: tuple[str, ...] = ()
    class_id: str = ""


@dataclass(frozen=True, slots=True)
class MainNames:
    """The names of a script.

    Attributes:
        sent: names with their values.
        unsent: names that cannot be sent, each with the reason.
        assigned: names to which functions of the script assign (`global`).
    """

    sent: tuple[MainName, ...] = ()
    unsent: tuple[tuple[str, str], ...] = ()
    assigned: tuple[str, ...] = ()


def names_of_script(words: frozenset[str] | None = None) -> MainNames:
    """Pickle what this process's script has: its classes, what else pickles by name, and the globals that these use.

    Args:
        words: send only functions and objects with one of these names, and what they use; None for all. Classes are
            always sent: elements that come from outside may be their instances.
    """
    main = sys.modules.get(MAIN)
    return _Script(_globals_of(main)).collected(words) if main is not None else MainNames()


def words_in(pipeline: bytes) -> frozenset[str] | None:
    """Return the words in the pickles of a serialized pipeline, so also the names of the script that it uses.

    Returns:
        None if a pickle is too long to be searched.
    """
    words: set[bytes] = set()
    for data in pickles_in(pipeline, _SEARCHED_BYTES_MAX + 1):
        if len(data) > _SEARCHED_BYTES_MAX:
            return None
        words.update(_WORDS.findall(data))
    return frozenset(word.decode() for word in words)


def referred_to(names: Iterable[str], pipeline: bytes) -> list[str]:
    """Return those of the names to which pickles of a pipeline refer as to globals of the script."""
    either = b"|".join(re.escape(name.encode()) for name in names)
    if not either:
        return []
    # A module and a name follow each other on the stack, or are one instruction in older protocols.
    used = re.compile(rb"\x8c.(%b)(?:\x94|q.|r....)?\x93|c__(?:mp_)?main__\n(%b)\n" % (either, either), re.DOTALL)
    found = {name for data in pickles_in(pipeline) for pair in used.findall(data) for name in pair if name}
    return sorted(name.decode() for name in found)


def pickles_in(pipeline: bytes, limit: int = sys.maxsize) -> Iterator[bytes]:
    """Yield the SDK's pickles in a serialized pipeline, decompressed, each up to a number of bytes."""
    for text in set(_PICKLES.findall(pipeline)):
        try:
            packed = base64.b64decode(text[: len(text) // 4 * 4])
            unpacked: Any = bz2.BZ2Decompressor() if text.startswith(b"Qlpo") else zlib.decompressobj()
            yield unpacked.decompress(packed, limit)
        except (binascii.Error, zlib.error, OSError, ValueError):
            continue  # other bytes, which look like a pickle


def _globals_of(main: types.ModuleType) -> dict[str, Any]:
    """Return the globals of the script's functions.

    SUBTLE: in its children, `multiprocessing` runs the script in a module of its own, and copies that module's names.
    """
    for value in list(vars(main).values()):
        if isinstance(value, types.FunctionType) and value.__globals__.get("__name__") == CHILD_MAIN:
            return value.__globals__
    return vars(main)


class _Script:
    """A script's globals, and what of them is pickled so far.

    Attributes:
        globals: the dict of the script's functions.
        values: its values by name.
        names: the name of each object that is sent by reference, by the object's id.
        assigned: see `MainNames`.
    """

    def __init__(self, globals_: dict[str, Any]) -> None:
        self.globals = globals_
        self.values = {name: value for name, value in list(globals_.items()) if name not in _UNNAMED}
        self.names: dict[int, str] = {}
        self.assigned: set[str] = set()
        self._roots: list[str] = []
        for name, value in self.values.items():
            self._add(name, value)

    def _add(self, name: str, value: Any) -> None:
        if isinstance(value, (*_ATOMS, types.ModuleType)) or name.startswith("__"):
            return
        if isinstance(value, tuple | frozenset) and not value:
            return
        is_code = isinstance(value, type | types.FunctionType)
        if is_code and cloudpickle._should_pickle_by_reference(value):
            return
        pickled_as = value.__qualname__ if is_code else global_name(value)
        is_own = pickled_as != "" and self.values.get(pickled_as) is value
        self.names[id(value)] = pickled_as if is_own else self.names.get(id(value), name)
        if is_own and pickled_as == name and value.__module__ in SCRIPT_MODULES:
            self._roots.append(name)

    def collected(self, words: frozenset[str] | None) -> MainNames:
        """Pickle the names; see `names_of_script`."""
        wanted = [n for n in self._roots if words is None or n in words or isinstance(self.values[n], type)]
        sent: dict[str, MainName] = {}
        unsent: dict[str, str] = {}
        holders: dict[str, list[str]] = {}
        size = 0
        wanted.reverse()
        while wanted:
            name = wanted.pop()
            if name in sent or name in unsent or name not in self.values:
                continue
            try:
                found, held = self._pickled(name, min(_NAME_BYTES_MAX, _ALL_BYTES_MAX - size))
            except Exception as e:
                unsent[name] = _reason(e)
                self._report(name, e)
                continue
            sent[name] = found
            size += len(found.data)
            for part in held:
                holders.setdefault(part, []).append(name)
            wanted += (*found.uses, *held)
        _without_holders(sent, unsent, holders)
        return MainNames(tuple(sent.values()), tuple(unsent.items()), tuple(sorted(self.assigned)))

    def _report(self, name: str, error: Exception) -> None:
        large_class = isinstance(error, _TooLargeError) and isinstance(self.values[name], type)
        level = logging.WARNING if large_class else logging.DEBUG
        _LOG.log(level, "'%s' of the script is not sent to the workers: %s", name, _reason(error))

    def _pickled(self, name: str, limit: int) -> tuple[MainName, Iterable[str]]:
        value = self.values[name]
        file = _LimitedFile(limit)
        pickler = _NamePickler(file, self, value if self.names.get(id(value)) == name else None)
        with cloudpickle_pickler._pickle_lock:
            pickler.dump(value)
        class_id = ""
        if isinstance(value, type | typing.TypeVar):
            class_id = cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS.get(value, "")
        uses = tuple(use for use in pickler.uses if use in self.values)
        return MainName(name, file.getvalue(), uses, class_id), pickler.held


def _without_holders(sent: dict[str, MainName], unsent: dict[str, str], holders: Mapping[str, list[str]]) -> None:
    """Move what holds an unsent object to the unsent names."""
    failed = list(unsent)
    while failed:
        part = failed.pop()
        for holder in holders.get(part, ()):
            if sent.pop(holder, None) is not None:
                unsent[holder] = f"it holds '{part}': {unsent[part]}"
                failed.append(holder)


class _TooLargeError(Exception):
    """A pickled value has more bytes than are sent."""


class _LimitedFile(io.BytesIO):
    """Refuses more bytes than its limit."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > self._limit:
            raise _TooLargeError(f"it has more than {self._limit:,} bytes")
        return super().write(data)


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, _TooLargeError) else f"{type(error).__name__}: {error}"


class _NamePickler(cloudpickle.Pickler):  # type: ignore[misc]  # the SDK is untyped
    """Pickles one value of a script; other named values become references.

    Attributes:
        uses: globals of the value's functions.
        held: names to which the pickle refers.
    """

    def __init__(self, file: io.BytesIO, script: _Script, value: Any) -> None:
        super().__init__(file, config=cloudpickle_pickler.DEFAULT_CONFIG)
        # The SDK takes this dict for all functions of the script, and pickles it as a reference.
        self.globals_ref[id(script.globals)] = script.globals
        self._script, self._value = script, value
        self.uses: dict[str, None] = {}
        self.held: dict[str, None] = {}

    def persistent_id(self, value: Any) -> Any:
        if value is self._script.globals:
            return GLOBALS
        name = self._script.names.get(id(value))
        if name is None or value is self._value:
            return None
        self.held[name] = None
        return name

    def reducer_override(self, value: Any) -> Any:
        parts = super().reducer_override(value)
        if parts is NotImplemented:
            return parts_of(value) if global_name(value) else parts
        if isinstance(value, types.FunctionType) and value.__globals__ is self._script.globals:
            slots = parts[2][1]
            self.uses.update(dict.fromkeys(slots["__globals__"]))
            slots["__globals__"] = {}
            self._script.assigned.update(_assigned_by(value.__code__))
        self._use_annotations(value)
        return parts

    def _use_annotations(self, value: Any) -> None:
        """Add the names in annotations that are strings: libraries evaluate them."""
        annotations = getattr(value, "__dict__", {}).get("__annotations__") or getattr(value, "__annotations__", None)
        if isinstance(annotations, dict):
            texts = [text for text in annotations.values() if isinstance(text, str)]
            self.uses.update(dict.fromkeys(name for text in texts for name in _IDENTIFIERS.findall(text)))


def _assigned_by(code: types.CodeType) -> Iterator[str]:
    """Yield the globals to which a function, or one inside it, assigns."""
    changes = (dis.opmap["STORE_GLOBAL"], dis.opmap["DELETE_GLOBAL"])
    if any(change in code.co_code[::2] for change in changes):
        yield from (step.argval for step in dis.get_instructions(code) if step.opcode in changes)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _assigned_by(inner)


def global_name(value: Any) -> str:
    """Return the name by which an object of the script pickles; "" if it does not pickle by name.

    Functions and classes do, too, but the SDK's pickler pickles those of a script by value.
    """
    kind = type(value)
    if getattr(value, "__module__", None) not in SCRIPT_MODULES or isinstance(value, type | types.FunctionType):
        return ""
    own: Any = object
    if (kind.__reduce__, kind.__reduce_ex__) == (own.__reduce__, own.__reduce_ex__):
        return ""
    try:
        reduced = value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    except Exception:
        return ""
    return reduced if isinstance(reduced, str) else ""


def parts_of(value: Any) -> tuple[Any, ...]:
    """Return the parts from which an object that pickles by its name is made again; see `object.__reduce__`.

    Raises:
        pickle.PicklingError: it has parts that only its class knows.
    """
    kind = type(value)
    if isinstance(value, functools._lru_cache_wrapper):
        size, typed = value.cache_parameters().values()
        return _cached, (value.__wrapped__, size, typed)
    state: dict[str, Any] = {"__module__": value.__module__}
    if kind is typing.NewType:
        return kind, (value.__name__, value.__supertype__), state, None, None, _set_attributes
    if kind in (typing.ParamSpec, typing.TypeVarTuple):
        return kind, (value.__name__,), state, None, None, _set_attributes
    try:
        object.__new__(kind)
    except TypeError as e:
        raise pickle.PicklingError(f"cannot make another {kind.__qualname__}: {e}") from e
    slots = {name: getattr(value, name) for name in copyreg._slotnames(kind) if hasattr(value, name)}  # type: ignore[attr-defined]
    return _bare, (kind,), {**slots, **getattr(value, "__dict__", {})}, None, None, _set_attributes


def _cached(function: Any, size: int | None, typed: bool) -> Any:
    return functools.lru_cache(size, typed)(function)


def _bare(kind: type) -> Any:
    return object.__new__(kind)


def _set_attributes(value: Any, attributes: Mapping[str, Any]) -> None:
    for name, attribute in attributes.items():
        object.__setattr__(value, name, attribute)
