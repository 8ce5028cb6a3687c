"""The page: jobs in a browser. A client of status records; it must not know the engine, Beam or Spark."""
