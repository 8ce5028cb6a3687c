"""A stage's bundle processor in a worker, and what belongs to its bundles."""
