"""Batches that differ by rank, in a Lightning `Trainer`."""
