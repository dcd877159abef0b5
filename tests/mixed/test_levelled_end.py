"""The clocks and limits of GPUs that were levelled, after the end of the process in whatever way."""

import signal
import textwrap
import time

import pytest

from tests.nvml_driver import DeviceSpec
from tests.support.variants import long_but_first

ORIGINAL_WATTS = 450.0
DEVICE = DeviceSpec(default_limit_watts=650, power_limit_watts=ORIGINAL_WATTS)

# Two ranks in one process, of which one has twice the work.
TRAINING = """
    import sys, threading, time
    from tests.support.hooks import be_patient
    be_patient()
    from zeus_core.monitor import ZeusMonitor
    from zeus_core.mixed.levelling import LevellingOptimizer
    from zeus_core.optimizer import Energy, GlobalPowerLimitOptimizer
    from zeus_core.search import GridSearch
    from zeus_core.testing import ThreadWorld

    levelled = []

    def rank_main(world):
        monitor = ZeusMonitor(gpu_indices=[world.rank])
        grid = lambda settings, selector: GridSearch([450, 300], selector)
        trials = {"wait_steps": 0, "warmup_steps": 0, "profile_steps": 1, "search": grid}
        optimizer = LevellingOptimizer(monitor, world=world, quiet=True, ARGUMENTS)
        levelled.append(optimizer)
        while not optimizer.changes:  # however long that takes on this machine
            optimizer.on_step_begin()
            time.sleep(0.01 * (1 + world.rank))
            optimizer.on_work_end()
            world.gather(None)
            optimizer.on_step_end()

    ThreadWorld.run(2, rank_main, 240.0)
    print(levelled[0].settings, flush=True)
    END
"""


AFTER = "after=GlobalPowerLimitOptimizer(monitor, Energy(), world=world, **trials)"


@pytest.mark.parametrize(
    "arguments",
    long_but_first(['knob="clock"', "budget_watts=800", AFTER]),
    ids=["clocks", "limits", "clocks below a limit"],
)
@pytest.mark.parametrize("end", long_but_first(["SIGKILL", "SIGTERM", "normal"]))
def test_levelled_gpus_are_as_before(make_driver, end, arguments):
    driver = make_driver(DEVICE, DEVICE)
    program = textwrap.dedent(TRAINING).replace("ARGUMENTS", arguments)
    process = driver.start(program.replace("END", "pass" if end == "normal" else "time.sleep(60)"))
    if end != "normal":
        assert process.stdout.readline().startswith("[")
        process.send_signal(signal.Signals[end])
    _, errors = process.communicate(timeout=240)
    until = time.monotonic() + 240
    while not is_as_before(driver) and time.monotonic() < until:
        time.sleep(0.01)
    assert is_as_before(driver), errors
    changes = driver.calls(
        "nvmlDeviceSetGpuLockedClocks" if "budget" not in arguments else "nvmlDeviceSetPowerManagementLimit"
    )
    assert len(changes) >= 2, "it had changed them"
    if arguments == AFTER:
        assert len(driver.calls("nvmlDeviceSetPowerManagementLimit")) >= 3, "the search too, which is restored"


def is_as_before(driver):
    return all(
        device.power_limit_watts == ORIGINAL_WATTS and device.locked_clock_mhz is None for device in driver.devices
    )
