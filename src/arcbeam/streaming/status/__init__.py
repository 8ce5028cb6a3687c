"""What people are told of a streaming job, from its newest manifest alone."""
