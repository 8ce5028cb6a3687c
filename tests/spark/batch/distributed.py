"""The option for tests of what only separate tasks show: exchanges, spills, retries, lost executors."""

from __future__ import annotations

DISTRIBUTED = "--disable_optimizations=local_exchange"
"""Each stage has tasks of its own, also where there is little data."""
