"""Spark's Python daemon, with the SDK imported before it forks workers.

Every Python worker is a fork of Spark's daemon. Importing the SDK takes seconds; done here, it is done once per
executor. Used through `spark.python.daemon.module` in sessions of our own; any other session works without it.
"""

from __future__ import annotations

if __name__ == "__main__":
    import logging

    # The SDK warns about optional packages at import; once, in the driver, is enough.
    logging.disable(logging.WARNING)

    logging.disable(logging.NOTSET)

    from pyspark import daemon

    daemon.manager()
