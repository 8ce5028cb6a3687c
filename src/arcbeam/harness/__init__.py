"""A fused stage inside a Python worker: the SDK's bundle processor with arcbeam's reads and writes."""
