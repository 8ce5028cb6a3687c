"""The content of a commit: the manifest, its bytes, the names of files."""
