"""Energy for Lightning, in preparation."""
