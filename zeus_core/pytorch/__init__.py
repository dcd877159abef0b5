"""What needs torch: the only package of the core that imports it."""

from zeus_core.pytorch.simulated_compute import SimulatedCompute
from zeus_core.pytorch.world import TorchWorld

__all__ = ["SimulatedCompute", "TorchWorld"]
