"""Jobs: their life, their metrics, and the service that others submit them to."""
