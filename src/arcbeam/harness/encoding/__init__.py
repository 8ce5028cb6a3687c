"""Values as bytes: blocks, blobs of the exchange, coders of keys and windows."""
