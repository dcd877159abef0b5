"""Fakes and contracts for testing against this package; nothing in the package itself imports them.

The contract test class needs pytest and is imported by its own name:
`from zeus_core.testing.contracts import GpuContract`.
"""

from zeus_core.testing._fake_rapl import FakeRapl
from zeus_core.testing._faulty_gpu import FaultyGpu
from zeus_core.testing._pipeline_simulator import SimulatedInstruction, SimulatedIteration, simulate_pipeline
from zeus_core.testing._simulated_job import SimulatedJob, SimulatedRank
from zeus_core.testing._thread_world import ThreadWorld
from zeus_core.testing._virtual_time import VirtualBackground, VirtualTime

__all__ = [
    "FakeRapl",
    "FaultyGpu",
    "SimulatedInstruction",
    "SimulatedIteration",
    "SimulatedJob",
    "SimulatedRank",
    "ThreadWorld",
    "VirtualBackground",
    "VirtualTime",
    "simulate_pipeline",
]
