"""Each activity of a training its own setting: visits on a rank, their searches on rank 0, and what they save."""
