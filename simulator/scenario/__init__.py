"""What is simulated, as values from a seed."""
