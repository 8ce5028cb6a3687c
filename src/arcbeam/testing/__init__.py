"""What tests use, ours and others': stores that fail by the book, state in memory. Nothing in arcbeam imports it."""

from arcbeam.testing.faults import Faults, UnreliableBlobs
from arcbeam.testing.views import MemoryView

__all__ = ["Faults", "MemoryView", "UnreliableBlobs"]
