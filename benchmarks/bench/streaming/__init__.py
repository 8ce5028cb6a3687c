"""Unbounded pipelines: works, who does them, and how that is told."""
