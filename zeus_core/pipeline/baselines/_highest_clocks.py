"""The usual way: every instruction at its highest clock."""

from __future__ import annotations

from zeus_core.pipeline._plan import Plan
from zeus_core.pipeline._problem import Problem

__all__ = ["highest_clocks_plan"]


def highest_clocks_plan(problem: Problem) -> Plan:
    """The plan with every instruction at its highest clock: what "no slowdown" means."""
    return Plan.of("highest clocks", problem, [problem.highest_clocks[kind] for kind in problem.kind_of.tolist()])
