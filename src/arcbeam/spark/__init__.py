"""The only package that knows PySpark: sessions, the exchange, and bounded pipelines as Spark jobs.

Uses only what Spark Connect has, too: data frames, `mapInArrow`, `repartitionById`; no RDD, no `_jvm`.
"""
