"""The clock after a training process has ended, in whatever way, as another process sees it."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest

from tests.nvml_driver import DeviceSpec
from tests.support.variants import long_but_first

ORIGINAL_MHZ = 1710

SETTING = """
    import os, signal, sys, time
    from zeus_core.ports.time_source import MonotonicTime
    from zeus_core.device import discover_gpus
    from zeus_core.ports.device_events import HostEvents
    from zeus_core.ports.background import ThreadBackground
    from zeus_core.pipeline.optimizer._clock_setter import ClockSetter

    gpu = discover_gpus()[0]
    setter = ClockSetter(gpu, MonotonicTime(), ThreadBackground(), {original_mhz})
    mark = HostEvents(MonotonicTime())
    setter.set_now(1200)
    for clock_mhz in (1410, 900) * 5:
        setter.request(clock_mhz, mark())
        time.sleep(0.001)
"""

TRAINING = """
    import os, signal, sys, time
    from tests.support.hooks import be_patient
    be_patient()
    from zeus_core.monitor import ZeusMonitor
    from zeus_core.pipeline import PipelineFrequencyOptimizer, PipelineFrequencySettings, PipelineRank
    from zeus_core.pipeline.optimizer.frequency_phases import PlanningPhase

    settings = PipelineFrequencySettings(warmup_steps=1, lowest_clock_mhz=900, original_clock_mhz={original_mhz})
    optimizer = PipelineFrequencyOptimizer(ZeusMonitor(), PipelineRank(0), settings)
    while optimizer.phase not in {PlanningPhase.PROFILING, PlanningPhase.OBSERVING}:
        optimizer.on_step_begin()
        for kind in ("forward", "backward"):
            optimizer.on_instruction_begin(kind)
            time.sleep(0.002)
            optimizer.on_instruction_end(kind)
        optimizer.on_step_end()
        assert optimizer.phase is not PlanningPhase.OFF
"""

WAIT_FOR_A_SIGNAL = """
print("ready", flush=True)
while True:
    time.sleep(0.002)
"""

REQUEST_UNTIL_A_SIGNAL = """
print("ready", flush=True)
while True:
    for clock_mhz in (1410, 900):
        setter.request(clock_mhz, mark())
        time.sleep(0.0005)
"""

ENDS = [
    pytest.param("pass", 0, id="normal"),
    pytest.param("raise RuntimeError('training failed')", 1, id="exception"),
    pytest.param("os.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)", -signal.SIGINT, id="Ctrl-C"),
]


def start(driver, program, end, original_mhz=None):
    text = textwrap.dedent(program).replace("{original_mhz}", repr(original_mhz)) + end
    return subprocess.Popen(
        [sys.executable, "-c", text],
        env={**os.environ, **driver.environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def clocks_locked(driver):
    return [call.argument for call in driver.calls("nvmlDeviceSetGpuLockedClocks") if call.code == 0]


def check_restored(driver, original_mhz=None):
    assert clocks_locked(driver), "the clock had been changed"
    assert driver[0].locked_clock_mhz == original_mhz


@pytest.mark.parametrize(
    ("end", "code", "original_mhz"),
    [
        *(pytest.param(*end.values, ORIGINAL_MHZ, id=end.id) for end in ENDS),
        pytest.param("pass", 0, None, id="normal, not locked before"),
    ],
)
def test_a_process_that_ends_by_itself_puts_the_clock_back(make_driver, end, code, original_mhz):
    driver = make_driver(DeviceSpec())
    process = start(driver, SETTING, end, original_mhz)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == code, errors
    assert min(clocks_locked(driver)) < 1410
    check_restored(driver, original_mhz)


@pytest.mark.parametrize(
    "signal_number", long_but_first([signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGINT], 2)
)
def test_a_process_asked_to_end_during_a_clock_change_restores_and_dies(make_driver, signal_number):
    driver = make_driver(DeviceSpec())
    driver.set_latency(0.005, "nvmlDeviceSetGpuLockedClocks")  # so that some call is under way
    process = start(driver, SETTING, REQUEST_UNTIL_A_SIGNAL)
    assert process.stdout.readline() == "ready\n"
    assert driver[0].locked_clock_mhz is not None
    process.send_signal(signal_number)
    process.communicate(timeout=240)
    assert process.returncode == -signal_number
    check_restored(driver)


def test_a_forked_child_that_ends_leaves_the_clock_of_its_parent_alone(make_driver):
    driver = make_driver(DeviceSpec())
    fork = """
setter.set_now(900)
child = os.fork()
if child == 0:
    sys.exit(0)
os.waitpid(child, 0)
print(gpu.read_sm_clock_mhz(), flush=True)
"""
    output, errors = start(driver, SETTING, fork).communicate(timeout=240)
    assert output == "900\n", errors
    check_restored(driver)


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("pass", 0),
        ("optimizer.close()", 0),
        ("with optimizer:\n    sys.exit(3)", 3),
        ("del optimizer\nprint('ready')\nos._exit(0)", 0),
    ],
    ids=["normal", "closed", "sys.exit in a with block", "forgotten"],
)
def test_an_optimizer_puts_the_clock_back(make_driver, end, code):
    driver = make_driver(DeviceSpec())
    process = start(driver, TRAINING, end, ORIGINAL_MHZ)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == code, errors
    check_restored(driver, ORIGINAL_MHZ)


def test_an_optimizer_that_is_terminated_puts_the_clock_back(make_driver):
    driver = make_driver(DeviceSpec())
    process = start(driver, TRAINING, WAIT_FOR_A_SIGNAL)
    assert process.stdout.readline() == "ready\n"
    assert driver[0].locked_clock_mhz == 1980
    process.terminate()
    process.communicate(timeout=240)
    assert process.returncode == -signal.SIGTERM
    check_restored(driver)


def test_without_rights_no_clock_is_changed_and_the_warning_holds_the_command(make_driver):
    driver = make_driver(DeviceSpec(is_control_denied=True))
    process = start(driver, TRAINING, "")
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    assert f"sudo nvidia-smi -i {driver[0].uuid} -lgc 1980" in errors
    assert clocks_locked(driver) == []
