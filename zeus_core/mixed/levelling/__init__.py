"""Levelling: GPUs that would wait for a slower one run at a lower setting, at which they do not wait."""

from zeus_core.mixed.levelling._levelling_optimizer import LevellingOptimizer

__all__ = ["LevellingOptimizer"]
