"""Durable and host-local files of a job. Must not import Beam or Spark."""

from arcbeam.store.blobs.errors import StoreError
from arcbeam.store.jobtemp.location import JobLocation
from arcbeam.store.jobtemp.sidefiles import IterableWriter, MultimapWriter, SideReader

__all__ = ["IterableWriter", "JobLocation", "MultimapWriter", "SideReader", "StoreError"]
