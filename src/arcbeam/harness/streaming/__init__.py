"""Stages of unbounded pipelines in a worker: the engine's runner, on the SDK's bundle processor."""
