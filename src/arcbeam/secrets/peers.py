"""The user at the other end of a connection within this machine, as Linux shows it: an authentication without a secret.

Owns the way to find it. Clients of Beam cannot give a token, but each of their sockets belongs to a user. Must not know
who may do what.
"""

from __future__ import annotations

import ipaddress
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import unquote

_TABLES: Final = (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6"))
_TRIES: Final = 3
"""The system may leave out a connection of a table that changes while it is read."""
_ROOT: Final = 0


def is_own_process(peer: str, port: int) -> bool:
    """Return whether a connection is of a process of this user, or of root. On other systems than Linux it counts so.

    Args:
        peer: the other end, as gRPC names it: "ipv4:127.0.0.1:40000", "ipv6:[::1]:40000".
        port: of this end.
    """
    if not _TABLES[0].exists():
        return True
    try:
        ends = _ends(peer)
    except ValueError:
        return False
    for table in _TABLES * _TRIES:
        # SUBTLE: a connection is in one table only, and reading one takes milliseconds.
        if users := set(_users(table, ends, port)):
            return users <= {_ROOT, os.geteuid()}
    return False


def _ends(peer: str) -> tuple[str, ...]:
    """Return the texts of an address and port in the tables: one of IPv4 may also be in that of IPv6."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    address, number = ipaddress.ip_address(host.strip("[]")), int(port)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    packed = [address.packed]
    if isinstance(address, ipaddress.IPv4Address):
        packed.append(ipaddress.IPv6Address(f"::ffff:{address}").packed)
    return tuple(f" {_in_words(each)}:{number:04X} " for each in packed)


def _in_words(packed: bytes) -> str:
    """Return the digits of an address: words of four bytes in the machine's order."""
    words = (int.from_bytes(packed[at : at + 4], sys.byteorder) for at in range(0, len(packed), 4))
    return "".join(f"{word:08X}" for word in words)


def _users(table: Path, ends: tuple[str, ...], port: int) -> Iterator[int]:
    """Yield the users of the sockets at one of some ends that are connected to a port of this machine."""
    try:
        lines = table.read_text(encoding="ascii").splitlines()[1:]
    except OSError:
        return  # without IPv6
    for line in lines:
        if not any(end in line for end in ends):
            continue
        # The number, the two ends, state, queues, timers, retransmissions, user, time-out, and inode.
        _, local, remote, _, _, _, _, user, _, inode, *_ = line.split()
        # SUBTLE: a closed socket has no inode, and seems to be of root.
        if inode != "0" and remote.endswith(f":{port:04X}") and f" {local} " in ends:
            yield int(user)
