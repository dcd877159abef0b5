"""A training that is killed while it pauses, as another process sees it."""

import signal
import textwrap

from tests.nvml_driver import DeviceSpec
from tests.process.test_guardian import wait_until

ORIGINAL_WATTS = 450.0  # neither the default (650 W) nor the maximum (700 W)
DEVICE = DeviceSpec(default_limit_watts=650, power_limit_watts=ORIGINAL_WATTS)

PROGRAM = """
    import logging, time
    from zeus_core.electricity import WeeklyTariff
    from zeus_core.monitor import ZeusMonitor
    from zeus_core.optimizer.carbon_aware import CarbonAware
    from zeus_core.optimizer.power_limit import Energy, GlobalPowerLimitOptimizer
    from zeus_core.ports._time_source import MonotonicTime
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
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    wait_until(lambda: driver[0].power_limit_watts == ORIGINAL_WATTS)
    assert min(call.argument for call in driver.calls("nvmlDeviceSetPowerManagementLimit")) < 1000 * ORIGINAL_WATTS
