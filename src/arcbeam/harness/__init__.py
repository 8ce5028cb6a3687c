"""A fused stage inside a Python worker: the SDK's bundle processor with our reads and writes around it."""
