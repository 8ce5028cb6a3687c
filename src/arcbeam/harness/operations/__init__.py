"""The operations that stand where the SDK has its data plane: reads and writes, by blocks."""
