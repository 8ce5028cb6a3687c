"""Transforms run by blocks: chains of values, combines, windows, sources, batches."""
