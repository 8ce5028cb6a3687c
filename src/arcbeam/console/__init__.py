"""Output to a terminal: results as text or JSON, and a progress line."""
