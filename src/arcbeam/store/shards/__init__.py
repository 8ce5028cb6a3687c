"""State of shards: files, overlays, and copies on hosts."""
