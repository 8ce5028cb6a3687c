"""A batch job's temporary location: side inputs and rows of rounds."""
