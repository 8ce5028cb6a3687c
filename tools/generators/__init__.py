"""Generators of documents that are compared with the source."""
