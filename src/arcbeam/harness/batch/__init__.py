"""Input drivers of bounded stages: rows, keys, timers, panes, restrictions."""
