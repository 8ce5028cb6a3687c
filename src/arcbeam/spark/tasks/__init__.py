"""What runs in a Python worker for one task, and how code and failures travel."""
