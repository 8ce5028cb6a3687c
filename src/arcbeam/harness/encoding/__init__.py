"""Encoded values: blocks, blobs of the exchange, coders of keys and windows."""
