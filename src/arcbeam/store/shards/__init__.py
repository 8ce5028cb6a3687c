"""State of shards: files, overlays, and the copies on hosts."""
