"""What is done in Python workers when a job has committed, or has ended: publishing, the last calls, teardown."""
