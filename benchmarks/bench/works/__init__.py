"""What is measured, and how each peer does it."""
