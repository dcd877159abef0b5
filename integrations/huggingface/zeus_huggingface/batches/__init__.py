"""Batches that the Trainer and Accelerate train with: micro-batches, and those that differ by rank."""
