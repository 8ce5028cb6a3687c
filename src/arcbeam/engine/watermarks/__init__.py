"""Watermarks: what has passed, what holds them back, and the clocks of stages and shards."""
