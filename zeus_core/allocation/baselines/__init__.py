"""Baselines: simpler ways to share a batch, predicted by the same means."""

from zeus_core.allocation.baselines._shares import even_plan, proportional_plan

__all__ = ["even_plan", "proportional_plan"]
