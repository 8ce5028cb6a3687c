"""The rows of a level's shards as those of another number of shards."""
