"""Starting a driver from a folder: what is there, and how it fits the pipeline."""
