"""A stage's bundle processor in a worker, and the parts of its bundles."""
