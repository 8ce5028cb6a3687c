"""What people and programs see of a job: the status of one in steps, and figures for Prometheus."""
