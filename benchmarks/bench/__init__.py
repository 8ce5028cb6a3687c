"""The benchmark: the same work by arcbeam, hand-written PySpark and Beam's local runner."""
