"""The work of a Python worker for one task, and how code and failures are sent between driver and workers."""
