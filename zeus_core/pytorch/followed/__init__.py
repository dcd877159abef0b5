"""Loops of others that report nothing to us: followed by their optimizers, and by the callbacks of their frameworks."""
