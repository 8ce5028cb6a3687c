"""The driver of a streaming job: carries out the coordinator's commands, proposes and commits micro-batches."""
