"""Transforms that process blocks: chains of values, combines, windows, sources, batches."""
