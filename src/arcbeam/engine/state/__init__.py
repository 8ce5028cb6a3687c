"""What waits in a shard between steps: cells, timers, parked elements, restrictions."""
