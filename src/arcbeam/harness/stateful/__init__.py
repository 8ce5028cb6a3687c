"""DoFns with state and timers, run key by key."""
