"""The work of one task in a micro-batch: stages in shards, and the protocol to user code."""
