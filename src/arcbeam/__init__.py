"""Apache Beam pipelines on Apache Spark, in Python, through PySpark."""

from arcbeam.runner import ArcbeamRunner

__all__ = ["ArcbeamRunner"]
