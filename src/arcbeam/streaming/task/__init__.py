"""One task of a micro-batch: its input, its run, and the files that it writes."""
