"""What tests of the engine and of pipelines stand on: views in memory, faults, a virtual clock. No production code."""
