"""The power limit after a training process has ended, in whatever way, as another process sees it."""

import os
import signal
import textwrap

import pytest

from tests.nvml_driver import DeviceSpec
from tests.support.daemons import is_unprivileged
from tests.support.variants import long_but_first

ORIGINAL_WATTS = 450.0  # neither the default (650 W) nor the maximum (700 W)
DEVICE = DeviceSpec(default_limit_watts=650, power_limit_watts=ORIGINAL_WATTS)

TRAINING = """
    import os, signal, sys, time
    from tests.support.hooks import be_patient
    be_patient()
    from zeus_core.monitor import ZeusMonitor
    from zeus_core.optimizer.power_limit import GlobalPowerLimitOptimizer, Objective

    class Lowest(Objective):  # steps that only sleep cost as much at every limit, and chance would choose
        def cost(self, measurement, baseline):
            return measurement.power_limit

    optimizer = GlobalPowerLimitOptimizer(ZeusMonitor(), Lowest(), wait_steps=0, warmup_steps=0, profile_steps=2)
    for step in range(1000):
        optimizer.on_step_begin()
        time.sleep(0.002)
        optimizer.on_step_end()
        if (optimizer.power_limit_watts or 450) < 450:  # in a trial: on a busy machine the original may be chosen
            break
    {end}
"""

WAIT_FOR_A_SIGNAL = """
    print("ready", flush=True)
    time.sleep(60)
"""


def start(driver, end):
    return driver.start(textwrap.dedent(TRAINING).replace("{end}", textwrap.dedent(end)))


def limits_set(driver):
    return [call.argument / 1000 for call in driver.calls("nvmlDeviceSetPowerManagementLimit")]


def check_restored(driver):
    assert min(limits_set(driver)) < ORIGINAL_WATTS, "the search had changed the limit"
    assert max(limits_set(driver)) == ORIGINAL_WATTS
    assert driver[0].power_limit_watts == ORIGINAL_WATTS


@pytest.mark.parametrize(
    ("end", "code"),
    long_but_first(
        [
            ("raise RuntimeError('training failed')", 1),
            ("os.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)", -signal.SIGINT),
            ("optimizer.close()", 0),
            ("pass", 0),
            ("sys.exit(3)", 3),
        ],
        count=2,
    ),
    ids=["exception", "Ctrl-C", "closed", "normal", "sys.exit"],
)
def test_a_process_that_ends_by_itself_restores_the_limit(make_driver, end, code):
    driver = make_driver(DEVICE)
    process = start(driver, end)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == code, errors
    check_restored(driver)


@pytest.mark.parametrize("signal_number", long_but_first([signal.SIGTERM, signal.SIGHUP]))
def test_a_process_asked_to_end_restores_the_limit_and_dies_by_signal(make_driver, signal_number):
    driver = make_driver(DEVICE)
    process = start(driver, WAIT_FOR_A_SIGNAL)
    assert process.stdout.readline() == "ready\n"
    assert driver[0].power_limit_watts < ORIGINAL_WATTS
    process.send_signal(signal_number)
    process.communicate(timeout=240)
    assert process.returncode == -signal_number
    check_restored(driver)


@pytest.mark.long  # in the default suite, within a `with` block
def test_a_forked_child_that_ends_leaves_the_limit_of_its_parent_alone(make_driver):
    driver = make_driver(DEVICE)
    fork = """
    child = os.fork()
    if child == 0:
        sys.exit(0)
    os.waitpid(child, 0)
    print(optimizer._gpus[0].read_power_limit_watts(), flush=True)
    """
    process = start(driver, fork)
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    assert float(output) < ORIGINAL_WATTS
    check_restored(driver)


def test_a_forked_child_leaving_the_with_block_keeps_its_parents_limit(make_driver):
    driver = make_driver(DEVICE)
    fork = """
    with optimizer:
        child = os.fork()
        if child == 0:
            sys.exit(0)
        os.waitpid(child, 0)
        print(optimizer._gpus[0].read_power_limit_watts(), flush=True)
    """
    output, errors = start(driver, fork).communicate(timeout=240)
    assert float(output) < ORIGINAL_WATTS, errors
    check_restored(driver)


@pytest.mark.parametrize("signal_number", long_but_first([signal.SIGINT, signal.SIGUSR1]))
def test_signals_left_to_the_system_are_guarded_too(make_driver, signal_number):
    driver = make_driver(DEVICE)
    program = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_DFL)\n" + textwrap.dedent(TRAINING)
    process = driver.start(program.replace("{end}", textwrap.dedent(WAIT_FOR_A_SIGNAL)))
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal_number)
    process.communicate(timeout=240)
    assert process.returncode == -signal_number
    check_restored(driver)


def test_a_search_begun_in_another_thread_is_guarded_by_the_main_one(make_driver):
    driver = make_driver(DEVICE)
    end = """
    import threading
    optimizer.close()
    thread = threading.Thread(target=lambda: [optimizer.on_step_begin(), optimizer.on_step_end()])
    thread.start()
    thread.join()
    for _ in range(8):
        optimizer.on_step_begin()
        optimizer.on_step_end()
    print("ready", flush=True)
    time.sleep(60)
    """
    process = start(driver, end)
    assert process.stdout.readline() == "ready\n"
    assert driver[0].power_limit_watts < ORIGINAL_WATTS
    process.terminate()
    process.communicate(timeout=240)
    check_restored(driver)


def test_each_optimizer_of_a_process_reads_the_same_original_limit(make_driver):
    driver = make_driver(DEVICE)
    end = """
    for _ in range(3):
        optimizer = GlobalPowerLimitOptimizer(ZeusMonitor(), wait_steps=0, warmup_steps=0, profile_steps=2)
        for step in range(8):
            optimizer.on_step_begin()
            time.sleep(0.002)
            optimizer.on_step_end()
        assert optimizer.baseline_limit_watts == 450, optimizer.baseline_limit_watts
    """
    process = start(driver, end)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    check_restored(driver)


@pytest.mark.skipif(is_unprivileged(), reason="the daemon tries it too: tests/daemon has the refusals")
def test_without_rights_nothing_is_changed_and_the_warning_holds_the_command(make_driver):
    driver = make_driver(DeviceSpec(power_limit_watts=ORIGINAL_WATTS, is_control_denied=True))
    process = start(driver, "pass")
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 0
    assert f"sudo nvidia-smi -i {driver[0].uuid} -pl 450" in errors
    assert driver[0].power_limit_watts == ORIGINAL_WATTS
    assert len(limits_set(driver)) == (1 if os.geteuid() == 0 else 2), "others set what is in force first"


KNOBS_ALONE = """
    import time
    from zeus_core.device import discover_gpus
    from zeus_core.settings.clock_knob import SmClockKnob
    from zeus_core.settings.limit_knob import PowerLimitKnob

    gpus = discover_gpus({})
    knobs = PowerLimitKnob(gpus, 25), SmClockKnob(gpus[0], 1710), SmClockKnob(gpus[1])
    for knob in knobs:
        knob.apply(knob.settings[-1])
    print("ready", flush=True)
    time.sleep(60)
"""


@pytest.mark.skipif(is_unprivileged(), reason="a daemon restores the clock that an administrator names, not the client")
def test_unguarded_knobs_are_restored_when_the_process_is_asked_to_end(make_driver):
    driver = make_driver(DEVICE, DEVICE)
    process = driver.start(KNOBS_ALONE)
    assert process.stdout.readline() == "ready\n"
    assert [device.power_limit_watts for device in driver] == [200.0, 200.0]
    assert None not in [device.locked_clock_mhz for device in driver]
    process.terminate()
    process.communicate(timeout=240)
    assert process.returncode == -signal.SIGTERM
    assert [device.power_limit_watts for device in driver] == [ORIGINAL_WATTS, ORIGINAL_WATTS]
    assert [device.locked_clock_mhz for device in driver] == [1710, None]
