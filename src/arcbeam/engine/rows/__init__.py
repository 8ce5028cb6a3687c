"""How the engine's rows lie in a shard's key-value space."""
