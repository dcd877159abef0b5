"""Reports for people: pages, texts, tables and pictures of runs and of searches."""

from zeus_core.report.figure import draw_time_energy

__all__ = ["draw_time_energy"]
