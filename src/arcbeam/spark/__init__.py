"""Spark: sessions, exchanges, and pipelines as Spark jobs. The only package that knows PySpark.

It uses only what Spark Connect also offers: data frames, `mapInArrow`, `repartitionById`; no RDD, no `_jvm`.
"""
