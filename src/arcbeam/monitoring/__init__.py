"""Metrics of a job, for monitoring systems."""
