"""The address of Spark's own page, to which pages of jobs have links.

Owns how it is found: no API that Connect has returns it. A port of the settings counts only if the page there is that
of the session's application.
"""

from __future__ import annotations

import http.client
import json
import threading
from typing import Final

from pyspark.sql import SparkSession

_PORT: Final = "4040"
_TRIES: Final = "16"
"""Spark's defaults. If a port is taken, Spark takes the next one."""
_SECONDS: Final = 20.0
"""The first answer of a new session takes seconds."""


class SparkPage:
    """The page of a session's application.

    Attributes:
        address: without a path; "" while it is unknown, and if there is none.
    """

    def __init__(self) -> None:
        self.address = ""

    def find(self, spark: SparkSession) -> None:
        """Begin to look for it, in a thread of its own."""
        host, id = spark.conf.get("spark.driver.host", None), spark.conf.get("spark.app.id", None)
        if host and id and spark.conf.get("spark.ui.enabled", "true") == "true":
            port, tries = spark.conf.get("spark.ui.port", _PORT), spark.conf.get("spark.port.maxRetries", _TRIES)
            ports = range(first, first + int(tries or 0) + 1) if (first := int(port or 0)) else range(0)
            threading.Thread(target=self._look, args=(host, ports, id), name="spark-page", daemon=True).start()

    def _look(self, host: str, ports: range, id: str) -> None:
        for port in ports:
            try:
                found = _applications(host, port)
            except ConnectionRefusedError:
                continue
            except (OSError, http.client.HTTPException, ValueError):
                return  # the host cannot be reached from here, or another service has the port
            if id in found:
                self.address = f"http://{host}:{port}"
                return


def _applications(host: str, port: int) -> list[str]:
    """Return the ids of the applications that Spark's page at an address shows.

    Raises:
        OSError: nothing answers.
        ValueError, http.client.HTTPException: it is no page of Spark.
    """
    connection = http.client.HTTPConnection(host, port, timeout=_SECONDS)
    try:
        connection.request("GET", "/api/v1/applications")
        found = json.loads(connection.getresponse().read(1_000_000))
    finally:
        connection.close()
    return [str(each.get("id")) for each in found if isinstance(each, dict)] if isinstance(found, list) else []
