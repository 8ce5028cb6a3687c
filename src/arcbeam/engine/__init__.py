"""Time, state and progress of unbounded pipelines: pure, without Spark, protos or a clock."""
