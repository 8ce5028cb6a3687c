"""Transforms that users of Spark know, and Beam does not have; they run on any runner."""

from arcbeam.io.joins import JoinWithin

__all__ = ["JoinWithin"]
