"""When to train hard, softly or not at all, by the intensity or the price of electricity and a deadline."""

from zeus_core.optimizer.carbon_aware._carbon_aware import CarbonAware

__all__ = ["CarbonAware"]
