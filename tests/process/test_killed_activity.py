"""A training that is killed within an activity that has a clock of its own, by a driver whose calls take long."""

import signal
import sys
import textwrap

import pytest

from tests.nvml_driver import DeviceSpec
from tests.process.test_guardian import wait_until
from tests.support.variants import long_but_first

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the guardian needs Linux")

MHZ = {"generation": 900, "evaluation": 1200, "steps": 1500}

PROGRAM = """
    import time
    from tests.support.hooks import be_patient
    be_patient()
    from zeus_core.events import Activity
    from zeus_core.monitor import ZeusMonitor
    from zeus_core.optimizer import GlobalClockOptimizer
    from zeus_core.optimizer.power_limit import EnergyWithin

    optimizer = GlobalClockOptimizer(
        ZeusMonitor(), EnergyWithin(1.02), activities="each", changes_per_hour=10**6, max_steps=10**6
    )

    def visit(name):
        optimizer.on_pause(Activity(name))
        time.sleep({seconds})
        if is_ready and name == "{killed}":
            print("in", name, flush=True)
            time.sleep(60)
        optimizer.on_resume()

    is_ready = False
    while True:
        visit("generation")
        visit("evaluation")
        optimizer.on_step_begin()
        time.sleep({seconds})
        if optimizer._search is not None and optimizer._search.run_steps == 3:
            for name, visits in optimizer._search.visits.activities.items():
                visits.take_order(dict(generation=900, evaluation=1200)[name])
            optimizer._search.limiter.set(1500)
            is_ready = True
        optimizer.on_step_end()
        if is_ready and "{killed}" == "steps":
            time.sleep({seconds})
            print("in steps", flush=True)
            time.sleep(60)
"""


@pytest.mark.parametrize("latency", [0.01, 0.05])
@pytest.mark.parametrize("activity", long_but_first(["generation", "evaluation", "steps"]))
def test_a_training_that_is_killed_in_an_activity_leaves_no_clock(make_driver, activity, latency):
    driver = make_driver(DeviceSpec())
    for function in ("nvmlDeviceSetGpuLockedClocks", "nvmlDeviceResetGpuLockedClocks"):
        driver.set_latency(latency, function)
    process = driver.start(textwrap.dedent(PROGRAM).format(killed=activity, seconds=6 * latency))
    assert process.stdout.readline() == f"in {activity}\n"
    wait_until(lambda: driver[0].locked_clock_mhz == MHZ[activity])  # a busy machine sets it late
    process.kill()
    process.communicate(timeout=240)
    assert process.returncode == -signal.SIGKILL
    wait_until(lambda: driver[0].locked_clock_mhz is None)
