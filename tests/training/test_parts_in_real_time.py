"""The energies of the parts of a training against the truth of the NVML driver in C, in real time."""

import time
from collections import defaultdict

import pytest

from tests.nvml_driver import DeviceSpec
from zeus_core.device.cpu import CpuDiscovery
from zeus_core.events import Activity
from zeus_core.monitor import ZeusMonitor
from zeus_core.training import TrainingEnergy

pytestmark = [pytest.mark.real_time, pytest.mark.long]


def wait_until(moment: float) -> None:
    time.sleep(max(moment - time.monotonic(), 0.0))


@pytest.mark.parametrize(
    ("period_seconds", "step_seconds", "evaluation_seconds"), [(0.1, 0.19, 0.03), (0.02, 0.31, 0.26)]
)
def test_short_evaluations_between_steps(make_driver, period_seconds, step_seconds, evaluation_seconds):
    driver = make_driver(DeviceSpec(counter_period_seconds=1.004 * period_seconds, counter_phase_seconds=0.013))
    device = driver[0]
    monitor = ZeusMonitor(cpus=CpuDiscovery((), "none"), synchronize=lambda _: None)
    energy = TrainingEnergy(monitor, quiet=True)
    begin = time.monotonic() + 0.2
    device.set_load([(step_seconds, 400.0), (evaluation_seconds, 90.0)], repeat=True, start_seconds=begin)
    truth = defaultdict(float)

    def charge(activity: Activity, since: float) -> float:
        now = energy._recorder._split._since  # the moment that the hook has noted: this thread may have waited since
        truth[activity] += device.true_energy_joules(since, now)
        return now

    wait_until(begin)
    driver.clear_calls()
    energy.on_train_begin()
    energy.on_epoch_begin()
    since = energy._recorder._split._since
    for _ in range(40):
        energy.on_step_begin()
        wait_until(begin := begin + step_seconds)
        energy.on_step_end()
        energy.on_pause(Activity.EVALUATION)
        since = charge(Activity.STEPS, since)
        wait_until(begin := begin + evaluation_seconds)
        energy.on_resume()
        since = charge(Activity.EVALUATION, since)
    energy.on_epoch_end()
    charge(Activity.STEPS, since)
    energy.finish()
    energy.on_train_end()
    calls = driver.calls(device_index=0)
    account = energy.summary.account
    for activity, joules in truth.items():
        measured = account.activities[activity].measured
        # One case in twenty may lie outside; a third beyond is far outside.
        assert abs(measured.energy_joules - joules) <= 1.33 * measured.uncertainty_joules + 0.01 * joules
    assert len(calls) <= 20 * account.total.seconds + 40, "and the watch in the first second"
    assert sum(tally.measured_joules for tally in account.activities.values()) == account.total.measured_joules
