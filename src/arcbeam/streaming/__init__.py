"""Micro-batches of an unbounded job: engine and store brought together, for whoever runs tasks and has a clock."""
