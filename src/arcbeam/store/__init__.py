"""Durable and host-local files of a job. Knows neither Beam nor Spark."""

from arcbeam.store.errors import StoreError
from arcbeam.store.location import JobLocation
from arcbeam.store.sidefiles import IterableWriter, MultimapWriter, SideReader

__all__ = ["JobLocation", "StoreError", "IterableWriter", "MultimapWriter", "SideReader"]
