"""The status of a streaming job, from its newest manifest alone."""
