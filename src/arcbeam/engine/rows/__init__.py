"""The engine's rows in a shard's key-value space."""
