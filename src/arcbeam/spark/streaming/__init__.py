"""Unbounded jobs on Spark: a loop of steps, each one Spark job."""
