"""Figures of a job over time: charts, and their newest points."""
