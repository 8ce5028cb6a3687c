"""The settings that `spark-submit` gives a script: like those of the script, they win over arcbeam's own.

Owns how a process knows that `spark-submit` has started it. Must not know sessions.
"""

from __future__ import annotations

import os


def settings_of_spark_submit() -> dict[str, str]:
    """Return the settings of `spark-submit` if it has started this process, with Spark's defaults; else none."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return {}
    from pyspark import SparkConf, SparkContext  # not in the package of Connect's client

    SparkContext._ensure_initialized()  # else SparkConf does not see Java, which has the settings
    return dict(SparkConf().getAll())
