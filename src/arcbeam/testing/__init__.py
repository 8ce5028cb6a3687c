"""Utilities for tests, arcbeam's and others': stores with planned faults, state in memory. arcbeam never imports it."""

from arcbeam.testing.faults import Faults, UnreliableBlobs
from arcbeam.testing.views import MemoryView

__all__ = ["Faults", "MemoryView", "UnreliableBlobs"]
