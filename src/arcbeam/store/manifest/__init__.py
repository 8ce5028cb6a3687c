"""What a micro-batch made real: the manifest, its bytes, the names of files."""
