"""Logs that follow each other quickly ask the driver seldom, write seldom, and are right all the same.

`benchmarks/callback_overhead.py` measures the time of the hooks.
"""

import json

import pytest

from zeus_core.device import SimulatedGpu, Work, find_preset
from zeus_core.events import Activity
from zeus_core.optimizer import GlobalPowerLimitOptimizer
from zeus_core.search import GridSearch
from zeus_core.training import TrainingEnergy


class CountingGpu(SimulatedGpu):
    """Counts how often its limit is read: the driver may take long for that."""

    limit_reads = 0

    def read_power_limit_watts(self):
        self.limit_reads += 1
        return super().read_power_limit_watts()


@pytest.fixture
def gpu(time_source):
    return CountingGpu(find_preset("A100-SXM4-80GB"), time_source=time_source, power_limit_watts=350.0)


def train(energy, gpu, seconds):
    with energy.step():
        gpu.execute(Work(seconds, 484.9, 0.938, 0.744))


def test_no_log_asks_the_driver_for_the_limit(monitor, gpu):
    with TrainingEnergy(monitor, quiet=True) as energy:
        for _ in range(30):
            train(energy, gpu, 0.1)
            reads_before = gpu.limit_reads
            assert energy.log()["power_limit_w"] == 350
            assert gpu.limit_reads == reads_before
        assert 3 <= gpu.limit_reads <= 7  # once a second, in the background, and twice for what holds the board down
    reads = gpu.limit_reads
    gpu.execute(Work(10.0, 100.0))
    assert gpu.limit_reads == reads


def test_a_limit_set_by_the_optimizer_is_in_even_an_immediate_log(monitor, gpu):
    optimizer = GlobalPowerLimitOptimizer(
        monitor, wait_steps=0, warmup_steps=0, profile_steps=2, pl_step=50, search=GridSearch
    )
    with TrainingEnergy(optimizer=optimizer, quiet=True) as energy:
        for _ in range(40):
            train(energy, gpu, 0.05)
            assert energy.log()["power_limit_w"] == gpu.read_power_limit_watts()
    assert len(optimizer.trials) > 3


def test_the_journal_is_written_at_most_once_a_second(monitor, gpu, tmp_path):
    with TrainingEnergy(monitor, folder=tmp_path, quiet=True) as energy:
        for _ in range(30):
            train(energy, gpu, 0.1)
            energy.log()
    steps = [json.loads(line)["step"] for line in (tmp_path / "zeus-energy" / "rank-0.jsonl").read_text().splitlines()]
    assert len(steps) <= 1 + 5  # the first says that the part has begun
    assert steps[-1] == 30


def test_gaps_that_nothing_announces_leave_logs_quick(monitor, gpu, tmp_path):
    """Their energy is known by the power of those before them, and all adds up."""
    logged = 0.0
    with TrainingEnergy(monitor, folder=tmp_path, quiet=True) as energy:
        for number in range(400):
            train(energy, gpu, 0.02)
            if number % 10 == 9:
                gpu.execute(Work(0.1, 150.0))
            logged += energy.log().get("energy_j", 0.0)
    activities = energy.summary.account.activities
    lines = (tmp_path / "zeus-energy" / "rank-0.jsonl").read_text().splitlines()
    assert len(lines) <= 12 + 8  # in 12 s
    between = activities[Activity.BETWEEN_STEPS]
    assert between.seconds == pytest.approx(39 * 0.1, rel=0.1)
    assert between.energy_joules == pytest.approx(39 * 0.1 * 150, abs=between.measured.uncertainty_joules)
    rest = energy.summary.last_log.get("energy_j", 0.0)
    assert logged + rest == pytest.approx(activities[Activity.STEPS].energy_joules, rel=0.01)
    assert sum(tally.energy_joules for tally in activities.values()) == energy.summary.account.total.energy_joules
