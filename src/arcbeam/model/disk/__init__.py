"""Helpers for a local disk, for all packages. Standard library only."""
