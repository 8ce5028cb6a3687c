"""What waits in a shard between micro-batches: cells, timers, parked elements, restrictions."""
