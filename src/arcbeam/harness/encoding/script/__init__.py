"""The names of the user's script, in the workers."""
