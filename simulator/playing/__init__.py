"""How a scenario is played: drivers, hosts, tasks, user code, faults."""
