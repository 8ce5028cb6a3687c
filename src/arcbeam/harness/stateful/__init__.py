"""DoFns with state and timers, driven key by key."""
