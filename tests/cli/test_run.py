"""`zeus-core run`: the command runs as it would without us, and is measured."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time

import pytest

from tests.cli.conftest import Program
from tests.nvml_driver import DeviceSpec
from tests.support.fake_sysfs import FakeSysfs
from tests.support.variants import long_but_first

HANGING_SECONDS = 240.0
PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
SIGNALS = [1, 2, 3, 10, 12, 15, 24, 34, 40]  # 34 is the first real-time signal, 24 SIGXCPU


def read_json(path):
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("code", long_but_first([3, 0, 255]))
def test_the_exit_code_is_that_of_the_command(on_nothing, code):
    assert on_nothing("run", "--", "sh", "-c", f"exit {code}").returncode == code


@pytest.mark.parametrize("name", long_but_first(["SIGKILL", "SIGINT", "SIGTERM", "SIGSEGV", "SIGQUIT", "SIGPIPE"], 2))
def test_a_command_killed_by_a_signal_ends_us_likewise_after_the_summary(on_simulated, tmp_path, name):
    number = getattr(signal, name)
    ended = on_simulated("run", "--output", tmp_path / "run.json", "--", "sh", "-c", f"kill -{number} $$", cwd=tmp_path)
    assert ended.returncode == -number
    assert f"killed by {name}" in ended.stderr
    assert "GPU 0" in ended.stderr
    record = read_json(tmp_path / "run.json")
    assert (record["exit_code"], record["signal"]) == (128 + number, name)
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]  # no core file of ours


def test_a_shell_sees_the_same_status_as_without_us(on_nothing):
    script = f"{shlex.join(on_nothing.command('run', '--', 'sh', '-c'))} 'kill -9 $$' 2>/dev/null; echo $?"
    ended = subprocess.run(["sh", "-c", script], env=on_nothing.environment, capture_output=True, text=True)
    assert ended.stdout == "137\n"


def test_a_command_that_is_not_there_ends_with_127_and_one_sentence(on_simulated):
    ended = on_simulated("run", "--", "no-such-command", "x")
    assert ended.returncode == 127
    assert ended.stderr.splitlines()[1:] == ["zeus-core: no-such-command: command not found"]


def test_an_empty_name_ends_with_127_and_one_sentence(on_nothing):
    ended = on_nothing("run", "--", "", "x")
    assert (ended.returncode, ended.stderr) == (127, "zeus-core: '': command not found\n")


def test_a_command_and_its_output_may_lie_in_a_folder_with_spaces(on_nothing, tmp_path):
    folder = tmp_path / "a folder"
    folder.mkdir()
    for first_line in ("#!/bin/sh\n", ""):
        (folder / "a command").write_text(first_line + 'echo "$1"; exit 5\n')
        (folder / "a command").chmod(0o755)
        ended = on_nothing("run", "--output", "a run.json", "--", "./a command", "an  argument", cwd=folder)
        assert (ended.returncode, ended.stdout) == (5, "an  argument\n")
        assert ended.stderr.startswith("zeus-core: './a command' 'an  argument': ")
        assert read_json(folder / "a run.json")["command"] == ["./a command", "an  argument"]


def test_a_command_that_cannot_be_executed_ends_with_126_and_one_sentence(on_nothing, tmp_path):
    path = tmp_path / "data"
    path.write_text("not a program")
    for command in (path, tmp_path):
        ended = on_nothing("run", "--", command)
        assert ended.returncode == 126
        assert ended.stderr == f"zeus-core: {command}: cannot be executed: Permission denied\n"


def test_a_script_without_an_interpreter_line_runs_as_in_a_shell(on_nothing, tmp_path):
    path = tmp_path / "script"
    path.write_text("echo $1; exit 5\n")
    path.chmod(0o755)
    ended = on_nothing("run", "--", path, "argument")
    assert (ended.returncode, ended.stdout) == (5, "argument\n")


def test_standard_streams_and_other_files_are_the_commands_own(on_simulated, tmp_path):
    with (tmp_path / "third").open("w") as third:
        write_third = shlex.join([sys.executable, "-c", f"import os; os.write({third.fileno()}, b'third')"])
        script = f"cat; echo aside >&2; {write_third}"
        ended = on_simulated("run", "--quiet", "--", "sh", "-c", script, input="a\n--\nb", pass_fds=[third.fileno()])
    assert ended.stdout == "a\n--\nb"
    assert ended.stderr.splitlines()[1:] == ["aside"]
    assert (tmp_path / "third").read_text() == "third"


def test_signal_mask_and_ignored_signals_of_the_command_are_those_without_us(on_nothing):
    look = ["grep", "-E", "^Sig(Blk|Ign|Cgt)", "/proc/self/status"]
    directly = subprocess.run(look, capture_output=True, text=True, check=True)
    assert signal_sets(on_nothing("run", "--", *look).stdout) == signal_sets(directly.stdout)


def signal_sets(text):
    """The sets as numbers, without the signals 32 and 33: the C library's own, which its posix_spawn ignores."""
    return {name: int(bits, 16) & ~(0b11 << 31) for name, bits in (line.split() for line in text.splitlines())}


def test_arguments_of_the_command_are_not_taken_for_ours(on_nothing):
    ended = on_nothing("run", "--", "echo", "--quiet", "--", "--gpus", "9")
    assert ended.stdout == "--quiet -- --gpus 9\n"
    assert ended.stderr.startswith("zeus-core: echo --quiet -- --gpus 9: ")


TELLING = f"""
import os, signal, sys

def tell(*words):
    os.write(1, "{{}}\\n".format(words[0]).encode())  # a handler may interrupt another, and then must not print

for number in {SIGNALS}:
    signal.signal(number, tell)
tell("ready")
sys.stdin.read()
raise SystemExit(7)
"""


def test_each_signal_sent_to_us_alone_reaches_the_command_once(on_nothing):
    process = on_nothing.start("run", "--", sys.executable, "-c", TELLING)
    assert process.stdout.readline() == "ready\n"
    for number in SIGNALS:
        process.send_signal(number)
        assert process.stdout.readline() == f"{number}\n"
    output, errors = process.communicate(timeout=240)
    assert (output, process.returncode) == ("", 7)
    assert "exit code 7" in errors


def test_a_command_without_a_sigterm_handler_dies_of_it_and_we_too(on_nothing):
    process = on_nothing.start("run", "--", "sh", "-c", "echo ready; exec sleep 30")
    assert process.stdout.readline() == "ready\n"
    process.terminate()
    _, errors = process.communicate(timeout=240)
    assert process.returncode == -signal.SIGTERM
    assert "killed by SIGTERM" in errors


def test_an_interrupt_ignored_by_who_started_us_is_ignored_by_the_command(on_nothing):
    """Run in the background, as `zeus-core run -- command &` in a script does."""
    look = ["grep", "^SigIgn", "/proc/self/status"]
    command = ["sh", "-c", 'trap "" INT HUP; exec "$@"', "sh", *on_nothing.command("run", "--quiet", "--", *look)]
    ended = subprocess.run(command, env=on_nothing.environment, capture_output=True, text=True)
    ignored = int(ended.stdout.split()[1], 16)
    assert ignored >> (signal.SIGINT - 1) & 1
    assert ignored >> (signal.SIGHUP - 1) & 1


def test_a_parent_that_ignores_ends_of_children_still_gets_the_exit_code(on_nothing):
    program = f"""
import signal, subprocess
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
import os
os.execv({sys.executable!r}, {on_nothing.command("run", "--", "sh", "-c", "exit 3")!r})
"""
    assert subprocess.run([sys.executable, "-c", program], env=on_nothing.environment).returncode == 3


def test_what_is_measured_is_what_the_gpus_drew(on_driver, tmp_path):
    program, driver = on_driver(DeviceSpec(), DeviceSpec(has_energy_counter=False), DeviceSpec())
    for device, power_watts in zip(driver, (300.0, 150.0, 80.0), strict=True):
        device.set_load(power_watts)
    ended = program("run", "--gpus", "0,1", "--output", tmp_path / "run.json", "--", "sleep", "1")
    assert ended.returncode == 0
    record = read_json(tmp_path / "run.json")
    assert [device["method"] for device in record["devices"]] == ["counted", "integrated"]
    for device, power_watts in zip(record["devices"], (300.0, 150.0), strict=True):
        true_joules = power_watts * record["seconds"]
        assert abs(device["energy_joules"] - true_joules) <= device["uncertainty_joules"] + 0.01 * true_joules
    assert [device["uuid"] for device in record["devices"]] == [driver[0].uuid, driver[1].uuid]
    assert record["totals"]["energy_joules"] == pytest.approx(sum(d["energy_joules"] for d in record["devices"]))
    assert record["totals"]["is_complete"] is True
    assert "NVIDIA H200" in ended.stderr
    assert "on average" in ended.stderr


def test_two_runs_on_one_gpu_each_say_that_it_was_shared(on_driver, tmp_path):
    program, (device,) = on_driver(DeviceSpec())
    shared = "GPU 0: another process computed on it meanwhile, and the energy is that of all"
    files = [tmp_path / name for name in ("0.json", "1.json")]
    for seconds in (2.5, 20, HANGING_SECONDS):  # it looks each second at first: only a busy machine needs the others
        runs = [program.start("run", "--output", file, "--", "sh", "-c", "echo $$; read line") for file in files]
        device.set_processes(*((int(run.stdout.readline()), 0, 0) for run in runs))
        time.sleep(seconds)
        summaries = [run.communicate("\n")[1] for run in runs]
        if all(shared in summary for summary in summaries):
            break
    assert [summary.count(shared) for summary in summaries] == [1, 1]
    for file in files:
        assert shared in read_json(file)["notes"]
        assert shared in read_json(file)["parts"][-1]["results"]["remarks"]


@pytest.mark.real_time
@pytest.mark.parametrize(("vendor", "count"), long_but_first([("AMD", 8), ("Intel", 4), ("AMD", 4), ("Intel", 8)], 2))
def test_boards_of_sysfs_are_measured_each_once(vendor, count, tmp_path):
    tree = FakeSysfs(tmp_path)
    boards = count // 2 if vendor == "AMD" else count  # of two dies
    for _ in range(boards):
        if vendor == "AMD":
            tree.add("1.3", model="0x740c", name="AMD Instinct MI250X")
            tree.add_second_die()
        else:
            tree.add_intel()
    program = Program({"ZEUS_SYSFS": str(tree.root)})
    with tree.run(270.0):
        ended = program("run", "--output", tmp_path / "run.json", "--", "sleep", "1")
    assert ended.returncode == 0
    record = read_json(tmp_path / "run.json")
    assert record["is_simulated"] is True
    assert f"ZEUS_SYSFS={tree.root}: these GPUs are simulated" in ended.stderr
    assert [device["method"] for device in record["devices"]] == ["counted"] * boards
    for device in record["devices"]:  # not twice; on a busy machine the tree's own counters are late
        assert device["energy_joules"] == pytest.approx(
            270.0 * record["seconds"], abs=device["uncertainty_joules"] + 90
        )


def test_the_file_says_what_ran_when_and_how_it_ended(on_simulated, tmp_path):
    before = time.time()
    ended = on_simulated("run", "--output", tmp_path / "new folder" / "run.json", "--quiet", "--", "sh", "-c", "exit 3")
    assert ended.returncode == 3
    record = read_json(tmp_path / "new folder" / "run.json")
    assert (record["format"], record["version"]) == ("zeus-core run file", 2)
    assert (record["command"], record["exit_code"], record["signal"]) == (["sh", "-c", "exit 3"], 3, None)
    assert before <= record["start_time"] <= time.time()
    assert record["is_simulated"] is True
    assert [device["name"] for device in record["devices"]] == ["A40 (simulated)"] * 2
    assert [path.name for path in (tmp_path / "new folder").iterdir()] == ["run.json"]


def test_tags_are_recorded_with_the_run_and_reach_the_command(on_simulated, tmp_path):
    on_simulated.environment["ZEUS_TAGS"] = "team=nlp,stage=old"
    options = ["--quiet", "--tags", "stage=new,project=x", "--output", tmp_path / "run.json"]
    ended = on_simulated("run", *options, "--", "sh", "-c", "echo $ZEUS_TAGS")
    assert ended.stdout == "team=nlp,stage=old,stage=new,project=x\n"
    (part,) = read_json(tmp_path / "run.json")["parts"]
    assert part["identity"]["tags"] == {"team": "nlp", "stage": "new", "project": "x"}
    on_simulated("run", "--quiet", "--tags", "none", "--output", tmp_path / "nameless.json", "--", "true")
    (part,) = read_json(tmp_path / "nameless.json")["parts"]
    assert part["identity"] is None
    refused = on_simulated("run", "--tags", "nlp", "--", "echo", "started")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "--tags is 'nlp'; it must be names with values, such as team=nlp,project=x" in refused.stderr


def test_without_a_gpu_the_command_runs_and_the_summary_lists_missing_measurements(on_nothing, tmp_path):
    ended = on_nothing("run", "--gpus", "0", "--output", tmp_path / "run.json", "--", "echo", "hello")
    assert (ended.returncode, ended.stdout) == (0, "hello\n")
    assert "GPUs are not measured" in ended.stderr
    assert " J" not in ended.stderr
    record = read_json(tmp_path / "run.json")
    if not record["devices"]:  # no CPU either
        assert set(record["totals"].values()) == {None, False}
    assert "GPUs are not measured" in record["notes"][0]


@pytest.mark.parametrize("function", long_but_first(["nvmlInit", "nvmlDeviceGetName", "nvmlDeviceGetCount"]))
def test_a_driver_that_fails_does_not_keep_the_command_from_running(on_driver, function):
    program, driver = on_driver()
    driver.fail(function, 999)
    ended = program("run", "--", "sh", "-c", "echo hello; exit 3")
    assert (ended.returncode, ended.stdout) == (3, "hello\n")
    assert "NVML error 999" in ended.stderr


def test_a_gpu_lost_from_the_start_is_named_and_other_indices_stay(on_driver, tmp_path):
    program, driver = on_driver(DeviceSpec(), DeviceSpec())
    driver[0].lose()
    ended = program("run", "--output", tmp_path / "run.json", "--", "true")
    assert ended.returncode == 0
    assert "GPU 0 is not measured: GPU 0 does not answer" in ended.stderr
    (device,) = read_json(tmp_path / "run.json")["devices"]
    assert (device["index"], device["uuid"]) == (1, driver[1].uuid)


@pytest.mark.real_time
def test_a_gpu_lost_during_the_run_is_reported_as_not_measured(on_driver, tmp_path):
    program, driver = on_driver(DeviceSpec(), DeviceSpec())
    begin = time.monotonic()
    process = program.start("run", "--output", tmp_path / "run.json", "--", "sh", "-c", "echo ready; read line; exit 3")
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.3)
    driver[0].lose()
    time.sleep(time.monotonic() - begin)  # of a short time without the GPU, the energy would be estimated
    _, errors = process.communicate("go on\n", timeout=240)
    assert process.returncode == 3
    assert "GPU 0  NVIDIA H200  not measured: " in errors
    assert "total, at least" in errors
    record = read_json(tmp_path / "run.json")
    lost, counted = record["devices"]
    assert (lost["energy_joules"], lost["method"], lost["average_power_watts"]) == (None, "lost", None)
    assert "fell off the bus" in lost["lost_because"]
    assert (counted["method"], counted["lost_because"]) == ("counted", None)
    assert record["totals"]["is_complete"] is False


HURRIED = """
import sys
from zeus_core.cli.run._guarded_meter import GuardedMeter
from zeus_core.cli.run._run import run_measured

meter = GuardedMeter(None, patience_seconds=1.0, edge_seconds=1.0)
sys.exit(run_measured(["sh", "-c", "echo ready; read line; exit 3"], meter))
"""


WINDOW = """
import sys
from zeus_core.cli.run._guarded_meter import GuardedMeter

meter = GuardedMeter(None)
before = set(sys.modules)
meter.begin()
assert meter.end() is not None
print(*sys.modules.keys() - before)
"""


def test_nothing_is_imported_while_the_window_is_open(on_simulated):
    """That would take longer than many a command, and be measured with it."""
    ended = subprocess.run([sys.executable, "-c", WINDOW], env=on_simulated.environment, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (0, "\n"), ended.stderr


@pytest.mark.parametrize("usual_seconds", [0.0, 0.002], ids=["one after another", "at the same time"])
@pytest.mark.parametrize(
    "function",
    long_but_first(["nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetFieldValues"]),
)
def test_a_driver_hanging_at_the_end_does_not_block_process_exit(on_driver, function, usual_seconds):
    program, driver = on_driver(*[DeviceSpec(has_energy_counter="Energy" in function)] * 2)
    driver.set_latency(usual_seconds)  # slow calls are made in threads of their own: nobody may wait for these either
    process = subprocess.Popen([sys.executable, "-c", HURRIED], env=program.environment, **PIPES)
    assert process.stdout.readline() == "ready\n"
    driver.set_latency(HANGING_SECONDS, function)
    begin = time.monotonic()
    _, errors = process.communicate("go on\n", timeout=240)
    assert process.returncode == 3
    assert time.monotonic() - begin < HANGING_SECONDS / 2
    assert "exit code 3" in errors
    if "Energy" in function:
        assert "Energy is not measured: the driver has not answered within 1 s" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    "function", long_but_first(["nvmlDeviceGetTotalEnergyConsumption", "nvmlInit", "nvmlDeviceGetCount"])
)
def test_a_driver_hanging_at_the_start_does_not_block_process_exit(on_driver, function):
    program, driver = on_driver(DeviceSpec(), DeviceSpec())
    driver.set_latency(HANGING_SECONDS, function)
    begin = time.monotonic()
    process = subprocess.Popen([sys.executable, "-c", HURRIED], env=program.environment, **PIPES)
    _, errors = process.communicate("go on\n", timeout=240)
    assert process.returncode == 3
    assert time.monotonic() - begin < HANGING_SECONDS / 2
    assert "Energy is not measured: the driver has not answered within 1 s" in errors


def test_a_rank_of_a_launcher_measures_the_whole_machine_too(on_driver, tmp_path):
    program, _ = on_driver(DeviceSpec(), DeviceSpec(), LOCAL_RANK="1", LOCAL_WORLD_SIZE="2")
    program("run", "--output", tmp_path / "run.json", "--", "sleep", "0.1")
    assert len(read_json(tmp_path / "run.json")["devices"]) == 2


@pytest.mark.parametrize("name", long_but_first(["x.pdf", "file/run.json", ".", "/proc/run.json"]))
def test_an_output_that_cannot_be_written_is_said_before_the_command_starts(on_nothing, tmp_path, name):
    (tmp_path / "file").touch()
    ended = on_nothing("run", "--output", name, "--", "touch", "started", cwd=tmp_path)
    assert ended.returncode == 2
    assert f"--output is '{name}'" in ended.stderr
    assert not (tmp_path / "started").exists()


def test_an_output_that_is_a_pipe_is_written_to(on_nothing):
    ended = on_nothing("run", "--quiet", "--output", "/dev/stdout", "--", "true")
    assert json.loads(ended.stdout)["exit_code"] == 0


def test_an_output_that_vanishes_meanwhile_costs_the_file_and_nothing_else(on_nothing, tmp_path):
    folder = tmp_path / "folder"
    ended = on_nothing("run", "--output", folder / "run.json", "--", "sh", "-c", "rmdir folder; exit 3", cwd=tmp_path)
    assert ended.returncode == 3
    assert "could not be written" in ended.stderr


def test_a_standard_error_that_nobody_reads_does_not_change_the_exit_code(on_nothing):
    reader, writer = os.pipe()
    os.close(reader)
    assert on_nothing("run", "--", "sh", "-c", "exit 3", capture_output=False, stderr=writer).returncode == 3
    os.close(writer)
    closed = ["sh", "-c", 'exec "$@" 2>&-', "sh", *on_nothing.command("run", "--", "sh", "-c", "exit 3")]
    assert subprocess.run(closed, env=on_nothing.environment).returncode == 3


@pytest.mark.parametrize("arguments", [["run"], ["run", "--"], ["run", "--quiet", "--"]])
def test_a_missing_command_is_named_with_an_example(in_process, arguments):
    ended = in_process(*arguments)
    assert ended.returncode == 2
    assert "zeus-core run -- torchrun" in ended.stderr


def test_an_unknown_gpu_is_said_before_the_command_starts(on_simulated):
    ended = on_simulated("run", "--gpus", "0,7", "--", "echo", "started")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "there is no GPU 7; valid indices: 0, 1" in ended.stderr


def charged(record):
    """What is stated of the electricity, and the kilowatt-hours of the record."""
    return record["electricity"]["amounts"], record["totals"]["energy_kilowatt_hours"]


def test_emissions_and_cost_of_a_command(on_simulated, tmp_path):
    options = ["--intensity", "380g/kWh", "--price", "310 EUR/MWh", "--pue", "1.2", "--output", tmp_path / "run.json"]
    ended = on_simulated("run", *options, "--", "sleep", "0.3")
    assert ended.returncode == 0, ended.stderr
    amounts, kilowatt_hours = charged(read_json(tmp_path / "run.json"))
    assert amounts["g"]["amount"] == pytest.approx(kilowatt_hours * 380 * 1.2)
    assert amounts["EUR"]["amount"] == pytest.approx(kilowatt_hours * 0.31 * 1.2)
    uncertainty_joules = read_json(tmp_path / "run.json")["totals"]["uncertainty_joules"]
    assert amounts["g"]["uncertainty"] == pytest.approx(uncertainty_joules / 3.6e6 * 380 * 1.2)
    assert amounts["g"]["is_complete"] is True
    assert "PUE 1.2, at 380 g/kWh (by --intensity; average)" in ended.stderr
    assert "PUE 1.2, at 0.31 EUR/kWh (by --price)" in ended.stderr


def test_a_recorded_intensity_that_is_over_is_said_to_be(on_simulated, tmp_path):
    path = tmp_path / "a signal, of 2020.csv"
    path.write_text("timestamp,value\n2020-03-01 00:00,312\n2020-03-01 01:00,298\n")
    options = ["--intensity", f"{path},g/kWh,Europe/Berlin", "--output", tmp_path / "run.json"]
    ended = on_simulated("run", *options, "--", "true")
    assert ended.returncode == 0, ended.stderr
    amounts, kilowatt_hours = charged(read_json(tmp_path / "run.json"))
    assert amounts["g"]["amount"] == pytest.approx(kilowatt_hours * 312)
    assert amounts["g"]["stale_fraction"] == 1
    assert "100% of it at the mean value" in ended.stderr
    assert "a signal, of 2020.csv (g/kWh, Europe/Berlin) has no recent value at " in ended.stderr


def test_files_of_sources_state_their_unit_zone_and_layout(on_simulated, tmp_path):
    carbon, price = tmp_path / "maps.csv", tmp_path / "prices.csv"
    labels = "Carbon intensity gCO2eq/kWh (direct),Carbon intensity gCO2eq/kWh (Life cycle)"
    rows = "2020-03-01 00:00:00,CL,300,345,true\n2020-03-01 01:00:00,CL,300,345,false\n"
    carbon.write_text(f"Datetime (UTC),Zone id,{labels},Data estimated\n{rows}")
    days = [f"01/03/2020 0{hour}:00:00 - 01/03/2020 0{hour + 1}:00:00" for hour in range(2)]
    areas = "".join(f'"{day}","{area}","{price}"\n' for area, price in (("FR", 50), ("PL", 90)) for day in days)
    price.write_text(f'"MTU (UTC)","Area","Day-ahead Price (EUR/MWh)"\n{areas}')
    options = ["--intensity", carbon, "--price", price, "--output", tmp_path / "run.json"]
    refused = on_simulated("run", *options, "--", "true")
    assert refused.returncode == 2
    assert "several columns of values: 'Carbon intensity gCO2eq/kWh (direct)'" in refused.stderr
    carbon.write_text(
        "".join(f"{','.join(row.split(',')[:2] + row.split(',')[3:])}" for row in carbon.read_text().splitlines(True))
    )
    refused = on_simulated("run", *options, "--", "true")
    assert "rows of several Area: 'FR', 'PL'" in refused.stderr
    price.write_text("".join(row for row in price.read_text().splitlines(True) if "MTU" in row or '"PL"' in row))
    ended = on_simulated("run", *options, "--", "true")
    amounts, kilowatt_hours = charged(read_json(tmp_path / "run.json"))
    assert amounts["g"]["amount"] == pytest.approx(kilowatt_hours * 345)
    assert amounts["EUR"]["amount"] == pytest.approx(kilowatt_hours * 0.09)
    assert "Electricity Maps: Carbon intensity gCO2eq/kWh (Life cycle), Zone id CL" in ended.stderr
    assert "1 of 2 values estimated" in ended.stderr


def test_without_a_statement_nothing_is_charged(on_simulated, tmp_path):
    ended = on_simulated("run", "--output", tmp_path / "run.json", "--", "true")
    assert read_json(tmp_path / "run.json")["electricity"] is None
    assert "CO2" not in ended.stderr


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (
            ["--intensity", "380"],
            "--intensity is '380': there is no unit; give a value with its unit, such as 380",
        ),
        (["--intensity", "0.3EUR/kWh"], "--intensity is '0.3EUR/kWh': it is in EUR/kWh; give a value with its unit"),
        (["--price", "0.3 euros/kWh"], "--price is '0.3 euros/kWh': unit is 'euros/kWh'; it must be"),
        (["--price", "carbon.csv"], "or a CSV file with its unit and time zone, such as price.csv,EUR/MWh,UTC"),
        (["--price", "no.csv,EUR/MWh,UTC"], "no.csv cannot be read"),
        (["--price", "no.csv,EUR/MWh,Mars"], "zone is 'Mars'; it must be the name of a time zone"),
        (["--intensity", "380g/kWh", "--pue", "0.5"], "pue is 0.5; it must be the energy of the data centre"),
        (["--pue", "1.5"], "--pue is 1.5, which needs --intensity or --price; give one of them too"),
    ],
)
def test_electricity_that_is_stated_wrongly_ends_before_the_command(in_process, options, complaint):
    ended = in_process("run", *options, "--", "echo", "hello")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert complaint in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_without_a_gpu_there_is_no_amount(on_nothing, tmp_path):
    ended = on_nothing("run", "--intensity", "380g/kWh", "--output", tmp_path / "run.json", "--", "true")
    assert ended.returncode == 0, ended.stderr
    record = read_json(tmp_path / "run.json")
    if not record["devices"]:
        assert record["electricity"]["amounts"]["g"]["amount"] is None
        assert "CO2" not in ended.stderr
