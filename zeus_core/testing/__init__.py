"""Fakes and contracts for testing against this package; nothing in the package itself imports them.

The contract test class needs pytest and is imported by its own name:
`from zeus_core.testing.gpu_contract import GpuContract`.
"""

from zeus_core.testing.clock import VirtualBackground, VirtualClock
from zeus_core.testing.fake_rapl import FakeRapl
from zeus_core.testing.faulty_gpu import FaultyGpu
from zeus_core.testing.pipeline_simulator import SimulatedInstruction, SimulatedIteration, simulate_pipeline
from zeus_core.testing.simulated_job import SimulatedJob, SimulatedRank
from zeus_core.testing.thread_world import ThreadWorld

__all__ = [
    "FakeRapl",
    "FaultyGpu",
    "SimulatedInstruction",
    "SimulatedIteration",
    "SimulatedJob",
    "SimulatedRank",
    "ThreadWorld",
    "VirtualBackground",
    "VirtualClock",
    "simulate_pipeline",
]
