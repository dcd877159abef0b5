"""The search for one setting of all GPUs of a job during training: a power limit, or an SM clock."""
