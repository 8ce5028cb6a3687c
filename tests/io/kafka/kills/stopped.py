"""A publisher that suspends itself (SIGSTOP) at a point, once, and then continues.

    python -m tests.io.kafka.kills.stopped SERVERS FOLDER POINT COMMITTABLE

It prints "published" at the end. A committable is JSON; its records are in the folder.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from arcbeam.io.kafka import producing
from arcbeam.io.kafka.connection import ClientConnection
from arcbeam.io.kafka.publisher import PublishRecords
from arcbeam.io.kafka.writing import RecordStorage
from tests.io.kafka.kills import points


def main(servers: str, folder: str, point: str, committable: str) -> None:
    """Publish."""
    stops = [point]

    def reached(at: str) -> None:
        if at in stops:
            stops.remove(at)
            Path(folder, "stopped").touch()
            os.kill(os.getpid(), signal.SIGSTOP)
            # Another thread may be the one that the signal stops first: this one waits for it.
            time.sleep(1)

    points.install(producing, reached)
    connection = ClientConnection({"bootstrap.servers": servers, "transaction.timeout.ms": 1_000})
    publisher = PublishRecords(connection, RecordStorage(folder), trusts=False)
    publisher.setup()
    publisher.publish([json.loads(committable)])
    sys.stdout.write("published")


if __name__ == "__main__":
    main(*sys.argv[1:])
