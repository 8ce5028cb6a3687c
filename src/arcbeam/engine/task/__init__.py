"""What one task does in a micro-batch: stages in shards, with user code behind a protocol."""
