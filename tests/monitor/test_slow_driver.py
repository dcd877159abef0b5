"""Windows of a driver that takes long for a reading: the truth lies in their intervals, or they are lost."""

import itertools

import pytest

from tests.support.hooks import in_hook
from zeus_core.device import SimulatedGpu, Work, find_preset
from zeus_core.device.cpu import CpuDiscovery
from zeus_core.monitor import ZeusMonitor
from zeus_core.testing import FaultyGpu

NO_CPUS = CpuDiscovery((), "not part of this test")
LOAD_WATTS = 280.0


class SlowGpu(FaultyGpu):
    """Its next readings of the counter take some time, and show the energy by then, or what was asked for first."""

    slow_seconds = 0.0

    def __init__(self, gpu, time_source):
        super().__init__(gpu)
        self._time_source = time_source

    def read_energy_counter_joules(self):
        seconds, self.slow_seconds = self.slow_seconds, 0.0
        self._time_source.advance(seconds)
        return super().read_energy_counter_joules()


@pytest.fixture
def board(time_source):
    return SimulatedGpu(find_preset("A40"), time_source=time_source)


@pytest.fixture
def slow(board, time_source):
    return SlowGpu(board, time_source)


@pytest.mark.parametrize("loaded_seconds", [0.31, 2.07, 6.0])
@pytest.mark.parametrize("slow_seconds", [0.03, 0.3, 0.9, 5.0, 12.0])
@pytest.mark.parametrize("slow_readings", [{1}, {2}, {3}, {1, 2}, {2, 3}, {1, 2, 3}])
def test_the_time_a_reading_takes_is_part_of_its_uncertainty(
    time_source, board, slow, slow_readings, slow_seconds, loaded_seconds
):
    monitor = ZeusMonitor(gpus=[slow], cpus=NO_CPUS, time_source=time_source)
    readings, truths_joules = [], []
    for number in range(5):
        slow.slow_seconds = slow_seconds if number in slow_readings else 0.0
        truths_joules.append(board.exact_energy_joules())  # when the reading was asked for, as the window's time
        readings.append(monitor.read())
        if number % 2:
            time_source.advance(loaded_seconds)
        else:
            board.execute(Work(loaded_seconds, LOAD_WATTS))
    for begin, end in itertools.combinations(range(5), 2):
        (energy,) = monitor.between(readings[begin], readings[end]).devices.values()
        if energy.energy_joules is not None:
            truth_joules = truths_joules[end] - truths_joules[begin]
            assert abs(energy.energy_joules - truth_joules) <= energy.uncertainty_joules + 1e-3
    assert monitor.between(readings[0], readings[4]).total_energy is not None


def test_a_gpu_late_in_a_hook_does_not_spoil_windows_around_it(board, slow, time_source, monkeypatch):
    monkeypatch.setattr("zeus_core.monitor._instruments.CALL_SECONDS", 0.02)
    monitor = ZeusMonitor(gpus=[slow], cpus=NO_CPUS, time_source=time_source)
    before, began_at = monitor.read(), board.exact_energy_joules()
    board.execute(Work(3.0, LOAD_WATTS))
    slow.hang("read_energy_counter_joules")
    with in_hook():
        late = monitor.read()
    assert "has not answered" in late.gpus[0].fault
    board.execute(Work(12.0, LOAD_WATTS))
    slow.heal()
    monitor._instruments._together._threads[0].late.finish()
    time_source.advance(1.0)
    truth_joules = board.exact_energy_joules() - began_at
    (energy,) = monitor.between(before, monitor.read()).devices.values()
    assert abs(energy.energy_joules - truth_joules) <= energy.uncertainty_joules <= 0.03 * truth_joules
    (part,) = monitor.between(before, late).devices.values()
    assert part.energy_joules is None or abs(part.energy_joules - 3 * LOAD_WATTS) <= part.uncertainty_joules
