"""GPUs of a vendor that the product does not know, made here from public names alone, and passed to a monitor."""

import pytest

from tests.contracts.gpu import GpuContract
from zeus_core.device.cpu import CpuDiscovery
from zeus_core.device.gpu import Gpu, PowerRange
from zeus_core.errors import UsageError
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer import GlobalClockOptimizer
from zeus_core.optimizer.global_setting.phases import Phase
from zeus_core.optimizer.power_limit import EnergyWithin, GlobalPowerLimitOptimizer
from zeus_core.testing import VirtualTime
from zeus_core.training import TrainingEnergy

RANGE = PowerRange(100.0, 300.0)
ORIGINAL_WATTS = 280.0
CLOCKS_MHZ = tuple(range(2000, 900, -100))
STATIC_WATTS, DYNAMIC_WATTS = 60.0, 240.0


class AcmeGpu(Gpu):
    """Draws its static power, and more by the cube of the clock, to which its speed is proportional."""

    uuid, name, is_simulated = "GPU-acme-0", "Acme 9000 (simulated)", True
    energy_counter_period_seconds = power_average_seconds = 0.1

    def __init__(self, time_source):
        self._time_source = time_source
        self._limit_watts, self._locked_mhz, self._joules, self._is_busy = ORIGINAL_WATTS, None, 0.0, False
        self._since = time_source.now()

    def execute(self, seconds):
        """Work that takes so long at the highest clock."""
        self._count()
        self._is_busy = True
        self._time_source.advance(seconds * CLOCKS_MHZ[0] / self.read_sm_clock_mhz())
        self._count()
        self._is_busy = False

    def _count(self):
        now = self._time_source.now()
        self._joules, self._since = self._joules + self.read_power_watts() * (now - self._since), now

    def read_energy_counter_joules(self):
        self._count()
        return self._joules

    def read_power_watts(self):
        ratio = self.read_sm_clock_mhz() / CLOCKS_MHZ[0]
        return STATIC_WATTS + self._is_busy * DYNAMIC_WATTS * ratio**3

    def read_power_limit_watts(self):
        return self._limit_watts

    read_enforced_power_limit_watts = read_power_limit_watts

    def read_default_power_limit_watts(self):
        return RANGE.highest_watts

    def read_power_limit_range_watts(self):
        return RANGE

    def set_power_limit(self, limit_watts):
        if not RANGE.lowest_watts <= limit_watts <= RANGE.highest_watts:
            raise UsageError(f"{limit_watts:g} W is not from {RANGE.lowest_watts:g} to {RANGE.highest_watts:g} W")
        self._count()
        self._limit_watts = limit_watts

    def read_sm_clock_mhz(self):
        allowed = CLOCKS_MHZ[0] * ((self._limit_watts - STATIC_WATTS) / DYNAMIC_WATTS) ** (1 / 3)
        return int(min(allowed, self._locked_mhz or CLOCKS_MHZ[0]))

    def read_supported_sm_clocks_mhz(self):
        return CLOCKS_MHZ

    def lock_sm_clock(self, clock_mhz):
        if clock_mhz not in CLOCKS_MHZ:
            raise UsageError(f"{clock_mhz} MHz is none of the clocks of {self.name}")
        self._count()
        self._locked_mhz = clock_mhz

    def unlock_sm_clock(self):
        self._count()
        self._locked_mhz = None


@pytest.fixture
def time_source():
    return VirtualTime()


@pytest.fixture
def gpu(time_source):
    return AcmeGpu(time_source)


@pytest.fixture
def monitor(gpu, time_source):
    return ZeusMonitor(gpus=[gpu], cpus=CpuDiscovery((), "not part of this test"), time_source=time_source)


class TestAcmeGpu(GpuContract):
    @pytest.fixture
    def gpu(self, gpu):
        return gpu


@pytest.mark.parametrize("make", [GlobalPowerLimitOptimizer, GlobalClockOptimizer])
def test_they_are_measured_searched_and_restored(make, gpu, monitor, tmp_path):
    optimizer = make(monitor, EnergyWithin(factor=1.2), quiet=True)
    with TrainingEnergy(monitor, optimizer, folder=tmp_path, quiet=True) as energy:
        for _ in range(400):
            with energy.step(samples=8):
                gpu.execute(0.5)
        assert optimizer.phase is Phase.DONE
        assert gpu.read_sm_clock_mhz() < CLOCKS_MHZ[0] / 1.1
        joules = gpu.read_energy_counter_joules()
    assert (gpu.read_power_limit_watts(), gpu._locked_mhz) == (ORIGINAL_WATTS, None)
    assert energy.summary.account.total.energy_joules == pytest.approx(joules, rel=0.01)
    assert energy.summary.saving_fraction > 0.1
    assert (tmp_path / "zeus-energy" / "run.json").exists()
