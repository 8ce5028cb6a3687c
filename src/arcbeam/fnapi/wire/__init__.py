"""Bytes of the Fn API's data streams."""
