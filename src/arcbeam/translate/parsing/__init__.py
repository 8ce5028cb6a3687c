"""A pipeline, parsed: before the SDK's phases, and after them."""
