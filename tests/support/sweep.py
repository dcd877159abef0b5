"""The full sweep: its trials are known in advance, as tests of how trials are made need it."""

from functools import partial

from zeus_core.optimizer.power_limit import GlobalPowerLimitOptimizer
from zeus_core.search import GridSearch

sweep = partial(GlobalPowerLimitOptimizer, search=GridSearch, warmup_steps=10, profile_steps=40)
