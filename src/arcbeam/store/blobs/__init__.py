"""Where bytes live: folders, object stores, HDFS."""
