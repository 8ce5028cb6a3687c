"""Mutation testing: `python -m tools.mutation`."""
