"""What must hold of a simulated job, and what it must have put out."""
