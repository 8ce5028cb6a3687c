"""Digests of pickled code and values, equal for equal submissions of one script.

Two processes that run the same script pickle the same functions to different bytes. Sets are in the order of the
process's hashes, classes of the script get random ids, and values read from the clock differ. These digests ignore
that. They are computed from the pickle's instructions: nothing is imported and no code runs.

Ignored: the order of sets and dicts; file names, line numbers and docstring positions of code; random ids; addresses of
objects; pipeline options; instants that lie within a day of the submission. Everything else counts.
"""

from __future__ import annotations

import base64
import binascii
import bz2
import datetime
import io
import pickletools
import re
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

_PICKLE_BYTES_MAX = 1 << 20
"""Bytes. Larger pickles count as they are: they are data, and reading them instruction by instruction is slow."""
_SEARCHED = 4096
"""Bytes of an encoded value that are searched for instants and pickles."""
_DAY = 86_400.0
_UNITS = (1.0, 1e3, 1e6, 1e9)
"""Ticks per second in which programs count time since 1970."""
_RANDOM = re.compile(
    rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\b[0-9a-f]{32}\b|0x[0-9a-f]{6,16}\b"
)
_CREDENTIALS = re.compile(rb"(?<=://)[^/@\s]+@")
_PLACES = frozenset({"__file__", "__path__", "__firstlineno__", "__static_attributes__", "_cloudpickle_submodules"})
"""Entries of a module's or class's dict that give the location of its code, or what else its process has imported."""
_OF_CODE = {18: (10, 13, 14), 16: (9, 11, 12)}
"""Indexes of a code object's arguments that give its location, by the number of arguments (Python 3.11, 3.10)."""
_BASE64_OF_BZ2 = b"Qlpo"
_PICKLE = re.compile(rb"\x80[\x02-\x05]")


def digest(data: bytes, now: float) -> str:
    """Return the digest of a payload as the SDK makes it: pickled, and usually compressed and in base64.

    Args:
        data: the payload. Bytes of another form count as they are.
        now: the time of the submission, in seconds since 1970.
    """
    return _Digests(now).of_bytes(data).hex()


@dataclass(eq=False, slots=True)
class _Node:
    """What instructions of a pickle build.

    Attributes:
        kind: a type, or how the value is made.
        parts: ordered parts.
        members: unordered parts.
        pairs: keys and values, unordered.
    """

    kind: str
    parts: list[Any] = field(default_factory=list)
    members: list[Any] = field(default_factory=list)
    pairs: list[tuple[Any, Any]] = field(default_factory=list)


_MARK = object()


class _Digests:
    def __init__(self, now: float) -> None:
        self._now = now
        # Holds the node, too: an id is unique only while its object exists.
        self._known: dict[int, tuple[_Node, bytes]] = {}
        self._open: dict[int, int] = {}

    def of_bytes(self, data: bytes) -> bytes:
        """Return the digest of a payload, or of an encoded value."""
        plain = unpacked(data)
        return _hashed(b"bytes", self._masked_bytes(plain) if len(plain) <= _PICKLE_BYTES_MAX else plain)

    def _of_pickle(self, data: bytes, at: int) -> tuple[bytes, int]:
        """Return the digest of the pickle at `at` and the pickle's end; if it cannot be read, the end is `at`."""
        try:
            node, end = _read(data, at)
            # A separate reader, so that its nodes are freed afterwards.
            return _Digests(self._now).of_node(node), end
        except (
            ValueError,
            IndexError,
            KeyError,
            AttributeError,
            TypeError,
            RecursionError,
            StopIteration,
            struct.error,
        ):
            return b"", at

    def _masked_bytes(self, data: bytes) -> bytes:
        if _PICKLE.match(data):
            inner, end = self._of_pickle(data, 0)
            return inner + data[end:]
        data = _masked(data)
        if len(data) > _SEARCHED:
            return data
        found, at = bytearray(), 0
        while at < len(data):
            # Elements of types without a coder are encoded like this, after their length.
            inner, end = self._of_pickle(data, at) if _PICKLE.match(data, at) else (b"", at)
            if end > at and found.endswith(length_prefix := _as_varint(end - at)):
                del found[-len(length_prefix) :]
            if end == at and (length := self._instant_at(data, at)):
                inner, end = b"\0instant", at + length
            found += inner or data[at : at + 1]
            at = max(end, at + 1)
        return bytes(found)

    def _instant_at(self, data: bytes, at: int) -> int:
        """Return the number of bytes of an encoded instant at `at`; 0 if there is none."""
        if len(data) - at >= 8:
            (number,) = struct.unpack_from(">d", data, at)
            (signed,) = struct.unpack_from(">q", data, at)
            # TimestampCoder shifts them so.
            shifted = signed - (1 << 63) if signed >= 0 else signed + (1 << 63)
            if any(self._is_now(value, _UNITS[:3]) for value in (number, signed, shifted)):
                return 8
        number, length = _varint(data, at)
        return length if length > 4 and self._is_now(number, _UNITS[:3]) else 0

    def _is_now(self, value: float, units: Iterable[float] = _UNITS) -> bool:
        return any(abs(value / unit - self._now) < _DAY for unit in units)

    def of_node(self, node: Any) -> bytes:
        """Return the digest of what a pickle builds."""
        if not isinstance(node, _Node):
            return self._of_atom(node)
        if id(node) in self._known:
            return self._known[id(node)][1]
        if id(node) in self._open:
            return _hashed(b"again", str(len(self._open) - self._open[id(node)]).encode())
        self._open[id(node)] = len(self._open)
        try:
            made = self._of_parts(node)
        finally:
            del self._open[id(node)]
        self._known[id(node)] = node, made
        return made

    def _of_parts(self, node: _Node) -> bytes:
        parts = node.parts
        if node.kind == "call":
            name, arguments = _name_of(parts[0]), parts[1]
            if name.startswith(("apache_beam.options.pipeline_options.", "uuid.UUID")) or name in (
                "os.getpid",
                "_thread.lock",
            ):
                return _hashed(name.encode())
            given = arguments.parts if isinstance(arguments, _Node) else []
            if self._is_time(name, node, given):
                return _hashed(b"instant")
            if name.endswith("CodeType") and (places := _OF_CODE.get(len(given))):
                code = _Node("tuple", [each for i, each in enumerate(given) if i not in places])
                parts = [parts[0], code, *parts[2:]]
        pairs = sorted(
            self.of_node(key) + self.of_node(value)
            for key, value in node.pairs
            if not (isinstance(key, str) and key in _PLACES)
        )
        members = sorted(map(self.of_node, node.members))
        return _hashed(node.kind.encode(), *map(self.of_node, parts), b"|", *members, b"|", *pairs)

    def _is_time(self, name: str, node: _Node, given: list[Any]) -> bool:
        """Return whether an object is the time of the submission."""
        if name == "datetime.datetime":
            return bool(given) and self._is_datetime(given[0])
        if name != "apache_beam.utils.timestamp.Timestamp":
            return False
        states = (part.parts[0] for part in node.parts[2:])
        fields = (value for state in states if isinstance(state, _Node) for _, value in state.pairs)
        return any(isinstance(value, int) and self._is_now(value) for value in fields)

    def _is_datetime(self, packed: Any) -> bool:
        if not isinstance(packed, bytes) or len(packed) != 10:
            return False
        year, month, day, hour, minute, second = struct.unpack(">HBBBBB", packed[:7])
        try:
            time = datetime.datetime(year, month & 0x7F, day, hour, minute, second, tzinfo=datetime.UTC)
        except ValueError:
            return False
        return abs(time.timestamp() - self._now) < 2 * _DAY  # in any time zone

    def _of_atom(self, value: Any) -> bytes:
        if isinstance(value, bytes | bytearray):
            return self.of_bytes(bytes(value))
        if isinstance(value, str):
            return _hashed(b"str", _masked(value.encode("utf-8", "surrogatepass")))
        if isinstance(value, int | float) and not isinstance(value, bool) and self._is_now(value):
            return _hashed(b"instant")
        return _hashed(type(value).__name__.encode(), repr(value).encode())


def _hashed(*parts: bytes) -> bytes:
    hashed = sha256()
    for part in parts:
        hashed.update(len(part).to_bytes(8, "big") + part)
    return hashed.digest()


def _masked(data: bytes) -> bytes:
    return _CREDENTIALS.sub(b"", _RANDOM.sub(b"*", data))


def unpacked(data: bytes) -> bytes:
    """Return a payload without base64 and compression."""
    try:
        if data.startswith(_BASE64_OF_BZ2):
            return bz2.decompress(base64.b64decode(data, validate=True))
        if data.startswith(b"eJ"):
            return zlib.decompress(base64.b64decode(data, validate=True))
    except (ValueError, OSError, EOFError, binascii.Error, zlib.error):
        pass
    return data


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = length = 0
    while at + length < len(data) and length < 10:
        byte = data[at + length]
        number |= (byte & 0x7F) << (7 * length)
        length += 1
        if byte < 0x80:
            return number, length
    return 0, 0


def _as_varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def _name_of(function: Any) -> str:
    """Return the full name of a called function; "" if it has none."""
    if isinstance(function, _Node):
        if function.kind == "global":
            return ".".join(map(str, function.parts))
        if function.kind == "call" and _name_of(function.parts[0]).endswith("._builtin_type"):
            return str(function.parts[1].parts[0])
    return ""


def _read(data: bytes, start: int) -> tuple[Any, int]:
    """Return what the pickle at `start` builds, without building it, and the pickle's end."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}

    def marked() -> list[Any]:
        at = len(stack) - 1 - next(i for i, each in enumerate(reversed(stack)) if each is _MARK)
        taken = stack[at + 1 :]
        del stack[at:]
        return taken

    argument: Any
    for opcode, argument, at in pickletools.genops(io.BytesIO(data[start:])):
        name = opcode.name
        match name:
            case "PROTO" | "FRAME":
                pass
            case "STOP":
                return stack.pop(), start + (at or 0) + 1
            case "MARK":
                stack.append(_MARK)
            case "POP":
                _apply(stack.pop())
            case "POP_MARK":
                marked()
            case "DUP":
                stack.append(stack[-1])
            case "NONE":
                stack.append(None)
            case "NEWTRUE" | "NEWFALSE":
                stack.append(name == "NEWTRUE")
            case "MEMOIZE":
                memo[len(memo)] = stack[-1]
            case "PUT" | "BINPUT" | "LONG_BINPUT":
                memo[int(argument)] = stack[-1]
            case "GET" | "BINGET" | "LONG_BINGET":
                stack.append(memo[int(argument)])
            case "EMPTY_TUPLE" | "EMPTY_LIST" | "EMPTY_DICT" | "EMPTY_SET":
                stack.append(_Node(name.removeprefix("EMPTY_").lower()))
            case "TUPLE" | "LIST":
                stack.append(_Node(name.lower(), marked()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                count = int(name[-1])
                parts = stack[-count:]
                del stack[-count:]
                stack.append(_Node("tuple", parts))
            case "DICT":
                stack.append(_Node("dict", pairs=_pairs(marked())))
            case "FROZENSET":
                stack.append(_Node("frozenset", members=marked()))
            case "APPEND":
                part = stack.pop()
                stack[-1].parts.append(part)
            case "APPENDS":
                taken = marked()
                stack[-1].parts.extend(taken)
            case "SETITEM":
                value, key = stack.pop(), stack.pop()
                stack[-1].pairs.append((key, value))
            case "SETITEMS":
                taken = marked()
                stack[-1].pairs.extend(_pairs(taken))
            case "ADDITEMS":
                taken = marked()
                stack[-1].members.extend(taken)
            case "GLOBAL":
                stack.append(_Node("global", argument.split(" ")))
            case "STACK_GLOBAL":
                attribute, module = stack.pop(), stack.pop()
                stack.append(_Node("global", [module, attribute]))
            case "REDUCE" | "NEWOBJ":
                arguments, function = stack.pop(), stack.pop()
                stack.append(_Node("call", [function, arguments]))
            case "NEWOBJ_EX":
                named, arguments, function = stack.pop(), stack.pop(), stack.pop()
                stack.append(_Node("call", [function, arguments, named]))
            case "BUILD":
                state = stack.pop()
                stack[-1].parts.append(_Node("state", [state]))
            case _ if opcode.arg is not None and not opcode.stack_before:
                stack.append(argument)
            case _:
                raise ValueError(f"instruction {name} is not one that the SDK's picklers write")
    raise ValueError("the pickle is truncated")


def _apply(call: Any) -> None:
    """Apply a call whose result is discarded.

    SUBTLE: such a call changes its first argument. Functions get their globals and closures in this way, and classes
    their methods.
    """
    if isinstance(call, _Node) and call.kind == "call" and isinstance(call.parts[1], _Node):
        changed, *how = call.parts[1].parts or [None]
        if isinstance(changed, _Node):
            changed.parts.append(_Node("state", [call.parts[0], *how]))


def _pairs(flat: list[Any]) -> list[tuple[Any, Any]]:
    return list(zip(flat[::2], flat[1::2], strict=True))
