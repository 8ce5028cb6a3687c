"""Kafka without Java: `ReadFromKafka` and `WriteToKafka`."""

from arcbeam.io.kafka.fetching.protocols import OffsetsGoneError, TopicGoneError
from arcbeam.io.kafka.outgoing import ProducerRecord, RecordRefusedError
from arcbeam.io.kafka.publisher import RegisterError
from arcbeam.io.kafka.records import KafkaRecord, Undecodable, UndecodableError
from arcbeam.io.kafka.registry import FromRegistry
from arcbeam.io.kafka.transform import ReadFromKafka, RecordsAndErrors
from arcbeam.io.kafka.writing import WriteToKafka

__all__ = [
    "FromRegistry",
    "KafkaRecord",
    "OffsetsGoneError",
    "ProducerRecord",
    "ReadFromKafka",
    "RecordRefusedError",
    "RecordsAndErrors",
    "RegisterError",
    "TopicGoneError",
    "Undecodable",
    "UndecodableError",
    "WriteToKafka",
]
