"""The exchanges of a training run, when a rank fails in one."""

import pytest

from zeus_core.device import SimulatedGpu, find_preset
from zeus_core.device.cpu import CpuDiscovery
from zeus_core.errors import DeviceLostError, WorldError
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer.power_limit import GlobalPowerLimitOptimizer
from zeus_core.testing import FaultyGpu, ThreadWorld, VirtualTime
from zeus_core.training._ranks import Ranks

NO_CPUS = CpuDiscovery((), "not part of this test")


class NamelessGpu(FaultyGpu):
    """A GPU of someone else's class, which asks the device for its name and UUID each time."""

    is_lost = False

    @property
    def uuid(self):
        return self._asked(super().uuid)

    @property
    def name(self):
        return self._asked(super().name)

    def _asked(self, answer):
        if self.is_lost:
            raise DeviceLostError("it fell off the bus")
        return answer


def lost_on_rank_1(rank):
    time_source = VirtualTime()
    gpu = NamelessGpu(SimulatedGpu(find_preset("A40"), rank, time_source=time_source))
    monitor = ZeusMonitor(gpus=[gpu], cpus=NO_CPUS, time_source=time_source)
    gpu.is_lost = rank == 1
    return monitor


def test_a_rank_that_cannot_name_its_gpus_keeps_no_other_waiting():
    def share(world):
        with pytest.raises(DeviceLostError if world.rank == 1 else WorldError, match="it fell off the bus"):
            Ranks(world).share(lost_on_rank_1(world.rank))

    ThreadWorld.run(2, share, timeout_seconds=30.0)


def test_a_search_with_a_rank_that_cannot_name_gpus_ends_everywhere(caplog):
    def search(world):
        optimizer = GlobalPowerLimitOptimizer(lost_on_rank_1(world.rank), world=world)
        optimizer.on_step_begin()
        optimizer.on_step_end()
        return optimizer.phase.name

    assert ThreadWorld.run(2, search, timeout_seconds=30.0) == ["OFF", "OFF"]
    assert "did not answer in time" not in caplog.text
