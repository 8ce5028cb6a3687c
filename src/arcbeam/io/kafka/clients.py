"""The clients of a reading transform, as it is stored with the pipeline."""

from __future__ import annotations

from dataclasses import dataclass

from arcbeam.io.kafka.connection import ClientConnection
from arcbeam.io.kafka.fetching.cluster import LibrdkafkaCluster
from arcbeam.io.kafka.fetching.consumer import SharedConsumer
from arcbeam.io.kafka.fetching.protocols import Readers, TopicCluster
from arcbeam.io.kafka.trouble import ClientTrouble, trouble_of


@dataclass(frozen=True, slots=True)
class Clients:
    """Makes the clients of a reading transform.

    Attributes:
        connection: how they connect.
        committed: whether to read only records of committed transactions.
        group: the consumer group; "" if there is none.
        commits: whether offsets of the group are committed.
    """

    connection: ClientConnection
    committed: bool
    group: str
    commits: bool

    def readers(self) -> Readers:
        """Return the readers of this process."""
        return SharedConsumer(self)

    def cluster(self) -> TopicCluster:
        """Return a new client for questions."""
        return LibrdkafkaCluster(self)

    def trouble(self) -> ClientTrouble:
        """Return what reports the trouble of a new client."""
        return trouble_of(self.connection)
