"""Energy measurement and optimisation for deep-learning training.

The core knows devices, windows, searches and plans; it knows no deep-learning framework. Importing it loads neither
torch nor a GPU driver. Start from `zeus_core.monitor.ZeusMonitor` to measure, and from
`zeus_core.optimizer.power_limit.GlobalPowerLimitOptimizer` to save.
"""

__all__ = ["__version__"]

__version__ = "0.1.0"
