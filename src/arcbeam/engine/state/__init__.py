"""The state of a shard between micro-batches: cells, timers, blocked elements, restrictions."""
