"""Data for the tasks of one Spark job, as a local property of the job: jobs that differ only in it share their plan.

Owns how such data is written and read, and how large it may be. Must not know what it is. A Connect server has no such
properties.
"""

from __future__ import annotations

import base64
import pickle
import zlib
from typing import Any, Final

from pyspark import TaskContext

from arcbeam.sizes import threshold

PROPERTY_BYTES_MAX: Final = threshold(1 << 18)
"""Bytes. A property is sent with each task separately; larger data goes into the plan, as a broadcast."""


def encoded(data: Any) -> str:
    """Return data as the text of a property."""
    return base64.b64encode(zlib.compress(pickle.dumps(data, protocol=5), 1)).decode()


def of_spark_job(name: str) -> Any:
    """Return the data in a property of the Spark job to which the current task belongs.

    Raises:
        RuntimeError: the Spark job has no such property.
    """
    context = TaskContext.get()
    text = None if context is None else context.getLocalProperty(name)
    if text is None:
        raise RuntimeError(f"the Spark job has no property {name!r} with the data of its tasks")
    return pickle.loads(zlib.decompress(base64.b64decode(text)))
