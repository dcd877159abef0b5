"""Energy for Lightning trainers. In preparation: this version holds no callback yet.

Until then a hand-written loop can use `zeus_core.optimizer.GlobalPowerLimitOptimizer` directly.
"""

__all__: list[str] = []
