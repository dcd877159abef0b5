"""Perseus for DeepSpeed, in preparation."""
