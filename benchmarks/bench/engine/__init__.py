"""What `benchmarks/engine.py` measures, part by part."""
