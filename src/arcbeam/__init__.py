"""Apache Beam pipelines on Apache Spark, in Python, through PySpark.

`ArcbeamRunner` is imported when it is first asked for: workers and the command line do without it. `GracefulShutdown`
is for DoFns that have something to do when their job ends.
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
