"""Jobs on GPUs that differ: batches and settings by rank, planned before training or found in it. See README.md."""
