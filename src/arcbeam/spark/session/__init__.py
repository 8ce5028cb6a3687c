"""Sessions of Spark: which one, how it is started, what its workers import."""
