"""SDK workers of tasks that do not start, or that end."""
