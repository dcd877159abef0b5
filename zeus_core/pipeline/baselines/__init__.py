"""Baselines: simpler ways to choose clocks, predicted by the same means."""

from zeus_core.pipeline.baselines._envpipe import envpipe_plan
from zeus_core.pipeline.baselines._global_clock import global_clock_plan, highest_clocks_plan
from zeus_core.pipeline.baselines._stage_clocks import stage_clocks_plan

__all__ = ["envpipe_plan", "global_clock_plan", "highest_clocks_plan", "stage_clocks_plan"]
