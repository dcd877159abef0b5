"""`zeus-core run` with settings for the run, a search by the steps it prints, and the original at every end."""

import json
import re
import signal
import subprocess
import sys
import time

import pytest

from tests.nvml_driver import DeviceSpec
from zeus_core.cli.run._fixed_settings import FixedSettings
from zeus_core.cli.run._run_options import Asked
from zeus_core.cli.run._step_output import CountedSteps, Point, StepMatches, steps_table
from zeus_core.device import SimulatedGpu, Work
from zeus_core.device.simulated.presets import find_preset
from zeus_core.optimizer.asked import asked_optimizer

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
        (["--step-pattern", "("], "--step-pattern is '('"),
        (["--step-pattern", "x*"], "--step-pattern is 'x*'; it must match some lines alone"),
        (["--step-pattern", "(a)(b)"], "--step-pattern is '(a)(b)'"),
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


@pytest.mark.parametrize(
    ("pattern", "chunks", "steps"),
    [
        (rb"step", [b"step 1\nst", b"ep 2\r", b"none\nstep 3", b"\n"], [1, 1, 1]),
        (rb"step (\d+)", [b"step 0\nstep 10\nstep 10\nstep 30\n"], [0, 10, 20]),
        (rb"step (\d+)", [b"step 7\rstep 8\rstep 2\nstep 4\n"], [0, 1, 0, 2]),
        (rb"(\d+)/", [b"499/\n1/8\n2/8\n500/\n501/\n"], [0, 0, 1, 1, 1]),  # a bar of an evaluation between
        (rb"step (\d+)", [b"\x1b[32mstep\x1b[0m 1\n\x1b[1mstep \x1b[", b"4m2\n"], [0, 1]),
        (rb"step (\d+)", [b"\x1b[2K\x1b[1Gstep 1\x1b[2K\x1b[", b"1Gstep 2\x1b[A"], [0, 1]),
        (rb"step (\d+)", [b"step 1", b"x" * 99_999, b"\n", b"y" * 99_999 + b"step 2\n"], [0, 1]),
        (rb"step (\S+)", [b"step 1,999\nstep 2,001\n"], [0, 2]),
        (rb"(\S+)it", [b"nan it\n1e999it\n1.5it\n4it\n"], [0, 3]),
        (rb"a|(b)", [b"a\n"], []),
    ],
)
def test_steps_are_found_in_lines_by_their_numbers(pattern, chunks, steps):
    matches = StepMatches(re.compile(pattern))
    assert [found for chunk in chunks for found in matches.feed(chunk)] == steps


def test_the_table_has_a_line_for_each_interval_and_one_for_all():
    points = [Point(0, 0.0, 0.0), Point(10, 2.0, 100.0), Point(30, 4.0, 500.0)]
    assert [line.split() for line in steps_table(points).splitlines()] == [
        ["steps", "s/step", "J/step", "power"],
        ["1-10", "0.2", "10", "50", "W"],
        ["11-30", "0.1", "20", "200", "W"],
        ["1-30", "0.133", "16.7", "125", "W"],
    ]
    assert steps_table(points[:1]) == ""


PRINTING = """
printf 'step 10\\nstep 20\\n'; printf 'no newline\\t\\0\\377' >&2; printf 'step 30\\rstep 40'
exit 4
"""


def test_output_stays_as_it_was_and_its_steps_are_counted(on_simulated, tmp_path):
    plain = on_simulated("run", "--quiet", "--", "sh", "-c", PRINTING, text=False)
    command = ["run", "--quiet", "--step-pattern", r"step (\d+)", "--output", tmp_path / "run.json"]
    counted = on_simulated(*command, "--", "sh", "-c", PRINTING, text=False)
    assert (counted.returncode, counted.stdout) == (plain.returncode, plain.stdout) == (4, plain.stdout)
    assert counted.stderr.replace(b"zeus-core: ", b"").endswith(plain.stderr.replace(b"zeus-core: ", b"")[-20:])
    points = json.loads((tmp_path / "run.json").read_text())["steps"]
    assert (points[0]["steps"], points[-1]["steps"]) == (0, 30)


def test_one_number_counts_no_step_and_loses_no_summary(on_simulated):
    ended = on_simulated("run", "--step-pattern", r"step (\d+)", "--", "echo", "step 5")
    assert "  No steps were counted: fewer than two lines match --step-pattern" in ended.stderr
    assert ended.returncode == 0


def test_steps_that_both_streams_report_count_once(on_simulated, tmp_path):
    report = "for n in 1 2 3; do echo step $n; echo step $n >&2; done"
    command = ["run", "--step-pattern", r"step (\d+)", "--output", tmp_path / "run.json", "--", "sh", "-c", report]
    on_simulated(*command)
    assert json.loads((tmp_path / "run.json").read_text())["steps"][-1]["steps"] == 2


def test_a_command_whose_reader_ends_notices_it(on_simulated):
    command = on_simulated.command("run", "--quiet", "--step-pattern", "x", "--", "yes", "x")
    ended = subprocess.run(
        ["bash", "-c", '"$@" | head -2; exit ${PIPESTATUS[0]}', "bash", *command],
        env=on_simulated.environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert (ended.stdout, ended.returncode) == ("x\nx\n", 128 + signal.SIGPIPE)


STEPPING = """
import os, sys, time
for step in range(int(sys.argv[2])):
    print("step", step)
    time.sleep(0.05)
    if os.path.exists(sys.argv[1]):
        sys.exit(3)
"""


def stepping(end_path, max_steps):
    """A command that prints a step every 50 ms, and ends with 3 once a file exists."""
    return [sys.executable, "-c", STEPPING, str(end_path), str(max_steps)]


def test_lines_that_were_read_together_are_one_step(monitor, gpu, time_source):
    """Else they look like steps that take no time, and the next block has thousands of them."""
    steps = CountedSteps(monitor, lambda monitor: asked_optimizer(monitor, {"ZEUS_SAVE": "10%"}), quiet=True)
    gpu.submit(Work(seconds=1000.0, active_power_watts=340.0))
    original, limits = gpu.read_power_limit_watts(), set()
    steps.note([0])
    steps.note([1] * 100)
    for _ in range(50):
        time_source.advance(0.1)
        steps.note([1])
        limits.add(gpu.read_power_limit_watts())
    assert limits > {original}
    steps.end()
    assert (gpu.read_power_limit_watts(), steps.points[-1].steps) == (original, 150)


@pytest.mark.parametrize("end", [3, signal.SIGTERM, signal.SIGKILL], ids=str)
def test_a_search_by_printed_steps_restores_the_original(program, tmp_path, end):
    run, driver = program
    driver[0].set_load(400.0)
    arguments = ["--save", "10%", "--step-pattern", r"step (\d+)", "--", *stepping(tmp_path / "end", 1200)]
    process = run.start("run", *arguments, stdout=subprocess.DEVNULL)
    until(lambda: driver[0].power_limit_watts < ORIGINAL_WATTS)
    if end == 3:
        (tmp_path / "end").touch()
        errors = process.communicate()[1]
        assert "| power limit" in errors
        assert re.search(r"^\| steps +\d+: ", errors, re.MULTILINE)
        assert process.returncode == 3
    else:
        process.send_signal(end)
        assert process.wait() == -end
        process.stdin.close()
        process.stderr.close()
        (tmp_path / "end").touch()
    until(lambda: driver[0].power_limit_watts == ORIGINAL_WATTS)


def test_observing_changes_nothing(program, tmp_path):
    run, driver = program
    ended = run("run", "--observe", "--step-pattern", r"step (\d+)", "--", *stepping(tmp_path / "end", 15))
    assert "| power limit" in ended.stderr
    assert not any(call.function.startswith("nvmlDeviceSetPowerManagementLimit") for call in driver.calls())


def test_trainings_of_the_command_are_asked_to_save(on_nothing):
    show = ["sh", "-c", "echo $ZEUS $ZEUS_SAVE $ZEUS_OBSERVE"]
    assert on_nothing("run", "--save", "10%", "--", *show).stdout == "1 10%\n"
    assert on_nothing("run", "--observe", "--", *show).stdout == "1 1\n"
    assert on_nothing("run", "--save", "10%", "--step-pattern", "x", "--", *show).stdout == "\n"


@pytest.mark.parametrize("options", [[], ["--save", "10%"]])
def test_without_a_gpu_the_command_runs_and_says_so(on_nothing, options):
    ended = on_nothing("run", *options, "--step-pattern", "x", "--", "printf", r"x\nx\nx\n")
    assert ended.stdout == "x\nx\nx\n"
    assert ended.stderr.endswith("  No steps were counted: no GPU is measured\n")


class _Reducing(SimulatedGpu):
    """A board whose controller enforces another limit after a while."""

    reduction_watts = 0.0

    def read_enforced_power_limit_watts(self):
        return super().read_enforced_power_limit_watts() - self.reduction_watts


def test_a_limit_not_always_in_force_is_not_said_to_be(time_source):
    gpu = _Reducing(find_preset("A100-SXM4-80GB"), time_source=time_source)
    settings = FixedSettings(Asked(limit_watts=300), [gpu])
    settings.apply()
    gpu.reduction_watts = 50.0
    settings.restore()
    assert settings.notes == ["The power limit was 300 W, but not in force for the whole run."]
