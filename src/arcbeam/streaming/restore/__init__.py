"""Restoring a job from its folder, and the compatibility of its state with the pipeline."""
