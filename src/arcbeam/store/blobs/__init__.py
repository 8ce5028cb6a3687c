"""Storage of bytes: folders, object stores, HDFS."""
