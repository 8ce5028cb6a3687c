"""Transforms that users of Spark know, and Beam does not have; they are made of Beam's own."""

from arcbeam.io.joins import JoinWithin
from arcbeam.io.watermarks import WithWatermark

__all__ = ["JoinWithin", "WithWatermark"]
