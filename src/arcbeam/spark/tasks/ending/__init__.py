"""Work in Python workers when a job has committed or ended: publishing, the last calls, teardown."""
