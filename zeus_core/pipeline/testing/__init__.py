"""Fakes of pipelines for tests: a job on simulated GPUs in virtual time, and a simulator of one iteration.

Nothing in the package itself imports them.
"""

from zeus_core.pipeline.testing._pipeline_simulator import simulate_pipeline
from zeus_core.pipeline.testing._simulated_job import SimulatedJob

__all__ = ["SimulatedJob", "simulate_pipeline"]
