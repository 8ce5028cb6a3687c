"""A Kafka broker on this machine, and what uses it: tests, a demo, benchmarks."""
