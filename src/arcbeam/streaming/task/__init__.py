"""One task of a micro-batch: what it reads and runs, and what it leaves behind."""
