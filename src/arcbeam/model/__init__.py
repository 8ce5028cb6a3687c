"""Values that every package shares: the plan, rows of the exchange, reports. Leaf: standard library only."""
