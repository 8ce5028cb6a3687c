"""What one task does in a step: stages in shards, with user code behind a protocol."""
