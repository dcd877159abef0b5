"""A training that is killed while it pauses, as another process sees it."""

import json
import signal
import textwrap
import time
from pathlib import Path

import pytest

from tests.nvml_driver import DeviceSpec
from tests.process.test_guardian import wait_until
from tests.support.ranks import torchrun_environments

ROOT = Path(__file__).parents[2]

ORIGINAL_WATTS = 450.0  # neither the default (650 W) nor the maximum (700 W)
DEVICE = DeviceSpec(default_limit_watts=650, power_limit_watts=ORIGINAL_WATTS)

PROGRAM = """
    import logging, time
    from tests.support.hooks import be_patient
    be_patient()
    from zeus_core.electricity import WeeklyTariff
    from zeus_core.monitor import ZeusMonitor
    from zeus_core.carbon import CarbonAware
    from zeus_core.optimizer.power_limit import Energy, GlobalPowerLimitOptimizer
    from zeus_core.ports.time_source import MonotonicTime
    from zeus_core.search import GridSearch

    class Told(logging.Handler):
        def emit(self, record):
            if "training pauses" in record.getMessage():
                print("pauses", flush=True)

    logging.getLogger("zeus_core").addHandler(Told())
    logging.getLogger("zeus_core").setLevel(logging.INFO)

    class Midnight(MonotonicTime):
        def clock_seconds(self):
            return 1_772_323_200.0

    tariff = WeeklyTariff({"Mon-Sun 01:00-00:00": 0.01, "Mon-Sun 00:00-01:00": 1.0}, "EUR/kWh", "UTC")
    aware = CarbonAware(tariff, 1_772_323_200.0 + 36_000.0, idle_watts=1.0)
    optimizer = GlobalPowerLimitOptimizer(
        ZeusMonitor(time_source=Midnight()),
        Energy(),
        wait_steps=0,
        warmup_steps=0,
        profile_steps=2,
        pl_step=100,
        search=GridSearch,
        max_steps=100_000,
        carbon_aware=aware,
    )
    while True:
        optimizer.on_step_begin()
        time.sleep(0.01)
        optimizer.on_step_end()
"""


def test_a_training_that_is_killed_in_a_pause_leaves_no_limit(make_driver):
    driver = make_driver(DEVICE)
    process = driver.start(textwrap.dedent(PROGRAM))
    assert process.stdout.readline() == "pauses\n"
    process.kill()
    process.communicate(timeout=240)
    assert process.returncode == -signal.SIGKILL
    wait_until(lambda: driver[0].power_limit_watts == ORIGINAL_WATTS)
    assert min(call.argument for call in driver.calls("nvmlDeviceSetPowerManagementLimit")) < 1000 * ORIGINAL_WATTS


RANKS = """
    import json, logging, os, sys, time
    from pathlib import Path
    os.environ.update({environment})
    sys.path.insert(0, {root!r})
    from tests.support.hooks import be_patient
    be_patient()
    import torch
    from zeus_core.electricity import Electricity, WeeklyTariff
    from zeus_core.monitor import ZeusMonitor
    from zeus_core.carbon import CarbonAware
    from zeus_core.optimizer.power_limit import Energy, GlobalPowerLimitOptimizer
    from zeus_core.ports.time_source import MonotonicTime
    from zeus_core.pytorch import torch_world
    from zeus_core.search import GridSearch
    from zeus_core.training import TrainingEnergy

    began = time.monotonic()

    class At(MonotonicTime):
        def clock_seconds(self):
            return 1_772_323_200.0 + {hour} * 3600 + 1800 + self.now() - began

    folder, rank = Path({folder!r}), int(os.environ["RANK"])
    torch.distributed.init_process_group("gloo")
    world, state = torch_world(), folder / f"state-{{rank}}.json"
    tariff = WeeklyTariff({{"Mon-Sun 01:00-00:00": 0.01, "Mon-Sun 00:00-01:00": 1.0}}, "EUR/kWh", "UTC")
    monitor = ZeusMonitor(gpu_indices=[rank], time_source=At())
    done = 0

    def save():
        state.write_text(json.dumps([done, energy.state_dict()]))
        print("pauses", flush=True)

    aware = CarbonAware(tariff, 1_772_323_200.0 + 36_000.0, idle_watts=1.0, checkpoint=save)
    optimizer = GlobalPowerLimitOptimizer(
        monitor, Energy(), wait_steps=0, warmup_steps=0, profile_steps=2, pl_step=100, search=GridSearch, max_steps=90,
        carbon_aware=aware, world=world,
    )
    energy = TrainingEnergy(
        optimizer=optimizer, world=world, folder=folder / "journal", electricity=Electricity(price=tariff), quiet=True
    )
    if state.exists():
        done, kept = json.loads(state.read_text())
        energy.load_state_dict(kept)
    begin = time.monotonic()
    energy.on_train_begin(done, max_steps=90)
    while done < 90:
        energy.on_step_begin()
        time.sleep(0.02)
        energy.on_step_end()
        done += 1
    energy.finish()
    energy.on_train_end()
    total = energy.summary.account.total
    print(json.dumps([begin, time.monotonic(), total.energy_joules, total.seconds, energy.summary.cost]), flush=True)
"""


@pytest.mark.long
def test_two_ranks_killed_in_a_pause_and_resumed_have_their_totals(make_driver, tmp_path):
    driver = make_driver(DEVICE, DEVICE)
    for number, device in enumerate(driver):
        device.set_load([(0.3, 300.0 + 50 * number), (0.1, 200.0)], repeat=True)

    def start(hour):
        return [
            driver.start(RANKS.format(environment=environment, root=str(ROOT), hour=hour, folder=str(tmp_path)))
            for environment in torchrun_environments(2)
        ]

    began = time.monotonic()
    first = start(0)
    assert [process.stdout.readline() for process in first] == ["pauses\n"] * 2
    time.sleep(1.0)  # of the pause
    killed = time.monotonic()
    for process in first:
        process.kill()
        process.wait()
    wait_until(lambda: all(device.power_limit_watts == ORIGINAL_WATTS for device in driver))
    ended = [process.communicate(timeout=240) for process in start(2)]
    assert all(output for output, _ in ended), ended[0][1]
    told = [json.loads(output.splitlines()[-1]) for output, _ in ended]
    assert told[0][2:] == told[1][2:], "all ranks tell the same"
    begin, end, joules, seconds, cost = told[0]
    resumed = sum(device.true_energy_joules(begin, end) for device in driver)
    before = sum(device.true_energy_joules(began, killed) for device in driver)
    assert resumed < joules <= 1.05 * (before + resumed)
    assert seconds > end - begin
    dear = 1.0 / 3.6e6
    assert dear * (joules - resumed) <= cost <= dear * joules, "what came before the kill was dear, and the rest is not"
    assert all(device.power_limit_watts == ORIGINAL_WATTS for device in driver)
