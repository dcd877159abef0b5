"""`zeus-core run` with settings for the run, a search in its command, and the original at every end."""

import json
import signal
import subprocess
import sys
import time

import pytest

from tests.nvml_driver import DeviceSpec
from zeus_core.cli.run._fixed_settings import FixedSettings
from zeus_core.cli.run._run_options import Setting
from zeus_core.device import SimulatedGpu
from zeus_core.device.simulated.presets import find_preset

ORIGINAL_WATTS = 450.0
DEVICE = DeviceSpec(default_limit_watts=650, power_limit_watts=ORIGINAL_WATTS)
WAIT_SECONDS = 240.0  # far more than anything takes: timing never decides a test
WAITING = ["sh", "-c", "echo ready; read line; exit 3"]


@pytest.fixture
def program(on_driver):
    """A program, and its driver with a GPU."""
    return on_driver(DEVICE)


def until(condition):
    end = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < end, "it has not happened"
        time.sleep(0.002)


SETTINGS = [
    (["--limit", "300W"], {}, (300.0, None)),
    (["--limit", "300", "--clock", "1200 MHz"], {}, (300.0, 1200)),
    ([], {"ZEUS_LIMIT": "300W", "ZEUS_CLOCK": "1200"}, (300.0, 1200)),
    (["--limit", "310W"], {"ZEUS_LIMIT": "300W"}, (310.0, None)),
]


@pytest.mark.parametrize("end", ["by itself", signal.SIGTERM, signal.SIGKILL], ids=str)
@pytest.mark.parametrize(("options", "_", "expected"), SETTINGS[:2])
def test_a_setting_lasts_as_long_as_the_run_however_it_ends(program, options, _, expected, end):
    run, driver = program
    process = run.start("run", *options, "--", *WAITING)
    assert process.stdout.readline() == "ready\n"
    assert (driver[0].power_limit_watts, driver[0].locked_clock_mhz) == expected
    if end == "by itself":
        errors = process.communicate("go on\n")[1]
        assert process.returncode == 3
        assert "The power limit was 300 W for the whole run." in errors
    else:
        process.send_signal(end)
        assert process.wait() == -end
    # Also while a command still runs that outlives a `run` that was killed.
    until(lambda: (driver[0].power_limit_watts, driver[0].locked_clock_mhz) == (ORIGINAL_WATTS, None))
    for stream in (process.stdin, process.stdout, process.stderr):
        stream.close()


@pytest.mark.parametrize(("options", "variables", "expected"), SETTINGS[2:])
def test_variables_stand_in_for_options(program, options, variables, expected):
    run, driver = program
    shows = ["sh", "-c", "env | grep ZEUS_LIMIT; read line"]
    run.environment |= variables
    process = run.start("run", *options, "--output", "/dev/null", "--", *shows)
    until(lambda: (driver[0].power_limit_watts, driver[0].locked_clock_mhz) == expected)
    output, _ = process.communicate("go on\n")
    assert output == "", "a zeus-core within does not set it again"
    assert driver[0].power_limit_watts == ORIGINAL_WATTS


def test_the_summary_says_which_limits_were_in_force(on_driver):
    run, driver = on_driver(DEVICE, DeviceSpec(lowest_limit_watts=350), DeviceSpec())
    driver[2].take_limits(offset_watts=3)
    ended = run("run", "--limit", "300W", "--output", "/dev/stdout", "--", "true")
    assert "The power limit was 297 to 350 W for the whole run: no GPU took what was nearer to 300 W." in ended.stderr
    assert json.loads(ended.stdout)["settings"] == {"power limit": "297 to 350 W"}


def test_a_limit_of_somebody_else_ends_that_of_the_run(program):
    run, driver = program
    process = run.start("run", "--limit", "300W", "--output", "/dev/null", "--", *WAITING)
    assert process.stdout.readline() == "ready\n"
    driver[0].power_limit_watts = 420
    errors = process.communicate("go on\n")[1]
    assert "The power limit was 300 W, until somebody else changed it." in errors
    assert driver[0].power_limit_watts == 420


def test_without_the_right_the_run_is_measured_and_says_what_is_missing(program):
    run, driver = program
    driver[0].deny_control()
    ended = run("run", "--limit", "300W", "--", "sh", "-c", "exit 3")
    assert ended.returncode == 3
    assert "The power limit was not changed to 300 W: " in ended.stderr
    assert " J " in ended.stderr
    assert driver[0].power_limit_watts == ORIGINAL_WATTS


def test_a_board_that_cuda_may_not_mean_is_not_limited(on_driver):
    """With a T4 on the first bus, CUDA computes on the A100 as index 0, the fastest first."""
    t4, a100 = (DeviceSpec(name=name, lowest_limit_watts=60) for name in ("NVIDIA T4", "NVIDIA A100-SXM4-80GB"))
    run, driver = on_driver(t4, a100, CUDA_VISIBLE_DEVICES="0")
    ended = run("run", "--limit", "100W", "--", "true")
    assert "The power limit was not changed to 100 W: the GPUs of this machine differ" in ended.stderr
    assert not driver.calls("nvmlDeviceSetPowerManagementLimit")
    checks = json.loads(run("doctor", "--json").stdout)["checks"]
    (rights,) = [check for check in checks if check["name"] == "set power limits"]
    assert (rights["state"], rights["fix"]) == ("missing", "export CUDA_DEVICE_ORDER=PCI_BUS_ID")
    run.environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    assert "The power limit was 100 W for the whole run" in run("run", "--limit", "100W", "--", "true").stderr


def test_off_turns_all_of_it_off(program):
    run, _ = program
    run.environment |= {"ZEUS": "off", "ZEUS_LIMIT": "hostile", "ZEUS_SAVE": "hostile"}
    ended = run("run", "--quiet", "--trainer", "--save", "10%", "--limit", "300W", "--", "env")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "PYTHONPATH=" + run.environment["PYTHONPATH"] in ended.stdout.splitlines()
    assert not any("ZEUS_SAVE=" in line for line in ended.stdout.splitlines())


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--limit", "1W"], "--limit is 1 W, and the GPUs take 100 to 400 W; 400 is the original"),
        (["--limit", "401W"], "--limit is 401 W, and"),
        (["--clock", "1201MHz"], "--clock is 1201 MHz, and the GPUs take "),
        (["--limit=-5"], "--limit is '-5'; it must be a whole number of W, such as 300W"),
        (["--limit", "1e3W"], "--limit is '1e3W'"),
        (["--limit", "\u0663\u0660\u0660W"], "--limit is "),
        (["--limit", "9" * 50], "--limit is "),
        (["--save", "0.1"], "--save is '0.1'; it must be a slowdown from 0% to 100%, such as 10%"),
        (["--save", "101%"], "--save is '101%'"),
        (["--save", "10%", "--clock", "1200"], "--save is '10%' and --clock is '1200': a setting is searched or"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(in_process, monkeypatch, tmp_path, arguments, complaint):
    monkeypatch.setenv("ZEUS_SIMULATED_GPUS", "A100-SXM4-80GB:1")
    monkeypatch.chdir(tmp_path)
    ended = in_process("run", *arguments, "--", "touch", "started")
    assert ended.returncode == 2
    assert complaint in ended.stderr
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize(
    ("arguments", "variables", "complaints", "expected"),
    [
        ([], {"ZEUS_SAVE": "ten"}, ["ZEUS_SAVE is 'ten'; it must be a slowdown"], (ORIGINAL_WATTS, None)),
        ([], {"ZEUS_CLOCK": "1.2GHz", "ZEUS_LIMIT": "much"}, ["'1.2GHz'; it", "'much'; it"], (ORIGINAL_WATTS, None)),
        ([], {"ZEUS_LIMIT": "9W"}, ["ZEUS_LIMIT is 9 W, and the GPUs take 200 to 4", ": 200 W is set"], (200, None)),
        ([], {"ZEUS_LIMIT": "700W"}, [f": {ORIGINAL_WATTS:g} W is set"], (ORIGINAL_WATTS, None)),
        ([], {"ZEUS_CLOCK": "1201MHz"}, ["ZEUS_CLOCK is 1201 MHz, and ", ": 1200 MHz is set"], (ORIGINAL_WATTS, 1200)),
        (
            [],
            {"ZEUS_SAVE": "5%", "ZEUS_LIMIT": "300W"},
            ["ZEUS_SAVE is ignored: a setting is"],
            (300, None),
        ),
        (["--limit", "300W"], {"ZEUS_SAVE": "5%"}, ["ZEUS_SAVE is ignored"], (300, None)),
        (["--save", "5%"], {"ZEUS_LIMIT": "300W"}, ["ZEUS_LIMIT and ZEUS_CLOCK are ignored"], (ORIGINAL_WATTS, None)),
    ],
)
def test_a_variable_of_a_site_never_stops_a_job(program, arguments, variables, complaints, expected):
    run, driver = program
    run.environment |= variables
    process = run.start("run", *arguments, "--", *WAITING)
    assert process.stdout.readline() == "ready\n"
    assert (driver[0].power_limit_watts, driver[0].locked_clock_mhz) == expected
    errors = process.communicate("go on\n")[1]
    assert process.returncode == 3
    assert [complaint for complaint in complaints if complaint not in errors] == []
    assert (driver[0].power_limit_watts, driver[0].locked_clock_mhz) == (ORIGINAL_WATTS, None)


TRAINING = """
import os, sys, time
from zeus_core.monitor import ZeusMonitor
from zeus_core.training import TrainingEnergy

energy = TrainingEnergy(ZeusMonitor())
energy.on_train_begin()
for step in range(int(sys.argv[2])):
    with energy.step():
        time.sleep(0.05)
    if os.path.exists(sys.argv[1]):
        break
energy.on_train_end()
sys.exit(3)
"""


def training(end_path, max_steps):
    """A command that trains in steps of 50 ms, and ends with 3 once a file exists."""
    return [sys.executable, "-c", TRAINING, str(end_path), str(max_steps)]


@pytest.mark.parametrize("end", [3, signal.SIGTERM, signal.SIGKILL], ids=str)
def test_a_search_in_the_command_restores_the_original(program, tmp_path, end):
    run, driver = program
    driver[0].set_load(400.0)
    arguments = ["--save", "10%", "--", *training(tmp_path / "end", 1200)]
    with (tmp_path / "errors").open("w") as errors:
        process = run.start("run", *arguments, stdout=subprocess.DEVNULL, stderr=errors)
    until(lambda: driver[0].power_limit_watts < ORIGINAL_WATTS)
    if end == 3:
        (tmp_path / "end").touch()
        assert process.wait() == 3
        assert "| power limit" in (tmp_path / "errors").read_text()
    else:
        process.send_signal(end)
        assert process.wait() == -end
        (tmp_path / "end").touch()  # SIGKILL of `run` alone lets the command go on
    process.stdin.close()
    until(lambda: driver[0].power_limit_watts == ORIGINAL_WATTS)


def test_observing_changes_nothing(program, tmp_path):
    run, driver = program
    ended = run("run", "--observe", "--", *training(tmp_path / "end", 15))
    assert "| power limit" in ended.stderr
    assert not any(call.function.startswith("nvmlDeviceSetPowerManagementLimit") for call in driver.calls())


def test_trainings_of_the_command_are_asked_to_save(on_nothing):
    show = ["sh", "-c", "echo ${ZEUS:+followed} $ZEUS_SAVE $ZEUS_OBSERVE"]
    assert on_nothing("run", "--save", "10%", "--", *show).stdout == "followed 10%\n"
    assert on_nothing("run", "--observe", "--", *show).stdout == "followed 1\n"


class _Reducing(SimulatedGpu):
    """A board whose controller enforces another limit after a while."""

    reduction_watts = 0.0

    def read_enforced_power_limit_watts(self):
        return super().read_enforced_power_limit_watts() - self.reduction_watts


def test_a_limit_not_always_in_force_is_not_said_to_be(time_source):
    gpu = _Reducing(find_preset("A100-SXM4-80GB"), time_source=time_source)
    settings = FixedSettings([Setting("power limit", 300, "W", "--limit")], [gpu])
    settings.apply()
    gpu.reduction_watts = 50.0
    settings.restore()
    assert settings.notes == ["The power limit was 300 W, but not in force for the whole run."]
