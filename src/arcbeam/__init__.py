"""Apache Beam pipelines on Apache Spark, in Python, through PySpark.

`ArcbeamRunner` is imported at its first use: workers and the command line do not need it. `GracefulShutdown` is for
DoFns with work to do when their job ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from arcbeam.model.shutdown import GracefulShutdown

if TYPE_CHECKING:
    from arcbeam.runner.runner import ArcbeamRunner

__all__ = ["ArcbeamRunner", "GracefulShutdown"]


def __getattr__(name: str) -> Any:
    if name == "ArcbeamRunner":
        from arcbeam.runner.runner import ArcbeamRunner

        return ArcbeamRunner
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
