"""Unbounded jobs on Spark: a loop of micro-batches, each one Spark job."""
