"""Files as sources and sinks: records in lists, and errors that name the file."""
