"""What decides about time, state and progress in unbounded pipelines: pure, without Spark, protos or a clock."""
