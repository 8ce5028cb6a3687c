"""What drives a stage on a bounded input: rows in, keys, timers, panes, restrictions."""
