"""What people are told of a job in steps, from its newest manifest alone."""
