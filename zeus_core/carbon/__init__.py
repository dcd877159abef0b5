"""When to train hard, softly or not at all, by the intensity or the price of electricity and a deadline."""

from zeus_core.carbon.carbon_aware import CarbonAware

__all__ = ["CarbonAware"]
