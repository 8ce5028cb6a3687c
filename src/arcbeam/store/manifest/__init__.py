"""What a step made real: the manifest, its bytes, the names of files."""
