"""Unbounded jobs in micro-batches: joins engine and store, for a cluster that runs tasks and a clock."""
