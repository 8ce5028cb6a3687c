"""Unbounded pipelines: works, the peers that do them, and the report."""
