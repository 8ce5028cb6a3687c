"""The sockets on which a process and its descendants listen, read from `/proc` by tests and by tasks in workers."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
from pathlib import Path

_LISTENS = "0A"


def listening(root: int) -> dict[tuple[str, int], str]:
    """Return address and port of every TCP socket on which a process or a descendant listens, with its command line."""
    owners: dict[str, int] = {}
    for pid in _tree(root):
        with contextlib.suppress(OSError):  # it has ended since then
            for name in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    owners.setdefault(os.readlink(f"/proc/{pid}/fd/{name}"), pid)
    found = {}
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text(encoding="ascii").splitlines()[1:]:
            local, _, state, *_, inode = line.split()[1:10]
            if state == _LISTENS and (pid := owners.get(f"socket:[{inode}]")):
                address, _, port = local.partition(":")
                found[_readable(address), int(port, 16)] = _command(pid)
    return found


def outside(found: dict[tuple[str, int], str]) -> list[str]:
    """Return those that other hosts can reach."""
    return [
        f"{host}:{port} of {command[:200]}" for (host, port), command in sorted(found.items()) if not _is_loopback(host)
    ]


def _is_loopback(host: str) -> bool:
    address = ipaddress.ip_address(host)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def _readable(address: str) -> str:
    """SUBTLE: the system writes each word of four bytes in the machine's order."""
    raw = bytes.fromhex(address)
    ordered = b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4))
    return socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, ordered)


def _tree(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = (folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1]
            children.setdefault(int(parent), []).append(int(folder.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8", errors="replace").replace("\0", " ")
    return ""
