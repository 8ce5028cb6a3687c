"""Reading from a cluster by librdkafka: records, ends, and the search for topics and offsets."""
