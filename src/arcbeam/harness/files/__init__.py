"""Files as sources and sinks: records many at a time, and errors that name the file."""
