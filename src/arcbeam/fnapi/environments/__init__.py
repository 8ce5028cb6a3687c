"""The SDK workers that a process has, and how they are started."""
