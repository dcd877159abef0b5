"""Fakes for testing against this package; nothing in the package itself imports them.

>>> from zeus_core.device import SimulatedGpu, Work, find_preset
>>> from zeus_core.monitor import ZeusMonitor
>>> time_source = VirtualTime()
>>> gpu = SimulatedGpu(find_preset("A100"), time_source=time_source)
>>> with ZeusMonitor(gpus=[gpu], time_source=time_source).window("an hour") as window:
...     gpu.execute(Work(seconds=3600, active_power_watts=300))
>>> window.measurement.time, round(window.measurement.total_energy / 1000)
(3600.0, 1080)
"""

from zeus_core.testing._fake_rapl import FakeRapl
from zeus_core.testing._faulty_gpu import FaultyGpu
from zeus_core.testing._thread_world import ThreadWorld
from zeus_core.testing._virtual_time import VirtualBackground, VirtualTime

__all__ = [
    "FakeRapl",
    "FaultyGpu",
    "ThreadWorld",
    "VirtualBackground",
    "VirtualTime",
]
