"""How often a wrong token may be tried.

Owns the count of wrong tokens, by the address that they are from. Must not know tokens.
"""

from __future__ import annotations

import ipaddress
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

TRIES: Final = 10
"""Wrong tokens from an address that are answered at once."""
SECONDS: Final = 6.0
"""Then, one more is answered each time after so long."""
_ADDRESSES: Final = 10_000
"""The most addresses that are remembered."""


class Throttle:
    """Counts wrong tokens by address. Addresses of IPv6 count by their network, because a machine has many.

    Args:
        seconds: a monotonic clock, in seconds.
    """

    def __init__(self, seconds: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._lock = seconds, threading.Lock()
        # When the last of an address's wrong tokens is forgotten.
        self._until: OrderedDict[str, float] = OrderedDict()

    def wait(self, address: str) -> float:
        """Return the seconds until an address may try again; 0: now."""
        with self._lock:
            left = self._until.get(_network(address), 0.0) - self._seconds()
        return max(0.0, left - (TRIES - 1) * SECONDS)

    def failed(self, address: str) -> None:
        """An address has tried a wrong token."""
        network, now = _network(address), self._seconds()
        with self._lock:
            self._until[network] = max(now, self._until.get(network, now)) + SECONDS
            self._until.move_to_end(network)
            while len(self._until) > _ADDRESSES:
                self._until.popitem(last=False)


def _network(address: str) -> str:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        return str(parsed.ipv4_mapped or ipaddress.ip_network((parsed.packed[:8] + bytes(8), 64)))
    return str(parsed)
