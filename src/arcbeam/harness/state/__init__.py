"""State and side inputs for the SDK's operations."""
