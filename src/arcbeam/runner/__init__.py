"""From a pipeline to its result: the runner of this process, that of a job server, and resuming from a folder."""
