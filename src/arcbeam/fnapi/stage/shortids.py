"""The metrics that a worker names by short ids.

Owns what the ids of one worker mean. Must not know what is done with the metrics.
"""

from __future__ import annotations

import logging
from typing import Any

from apache_beam.portability.api import beam_fn_api_pb2 as fn_pb
from apache_beam.portability.api import metrics_pb2

from arcbeam.fnapi.service.connection import Connection

_LOG = logging.getLogger("arcbeam.sdk")


class ShortIds:
    """The metrics of one worker.

    Args:
        worker: the worker.
        step: name of the transform to which messages refer.
    """

    def __init__(self, worker: Connection, step: str) -> None:
        self._worker, self._step = worker, step
        self._infos: dict[str, Any] = {}

    def infos(self, data: Any) -> list[Any]:
        """Return `MonitoringInfo`s of payloads by short id; metrics that the worker cannot name are missing."""
        if unknown := [id for id in data if id not in self._infos]:
            request = fn_pb.MonitoringInfosMetadataRequest(monitoring_info_id=unknown)
            named = self._worker.ask(monitoring_infos=request).monitoring_infos.monitoring_info
            # An id without a meaning is remembered, too: it is requested and reported once.
            self._infos.update({id: named.get(id) for id in unknown})
            if missing := [id for id in unknown if id not in named]:
                _LOG.warning("the SDK worker of %r reports metrics that it cannot name: %s", self._step, missing)
        found = []
        for id, payload in data.items():
            if (known := self._infos[id]) is not None:
                info = metrics_pb2.MonitoringInfo()
                info.CopyFrom(known)
                info.payload = payload
                found.append(info)
        return found
