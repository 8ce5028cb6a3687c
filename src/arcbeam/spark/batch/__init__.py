"""Bounded plans as Spark jobs: phases, rounds, exchanges."""
