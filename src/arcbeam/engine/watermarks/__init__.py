"""Watermarks and holds, and the clocks of stages and shards."""
