"""`zeus-core power`, `energy` and `devices`, and what all commands have in common."""

import itertools
import json
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

from tests.nvml_driver import DeviceSpec
from tests.support.fake_sysfs import FakeSysfs
from tests.support.variants import long_but_first
from zeus_core import __version__
from zeus_core._sysfs import find_cards
from zeus_core.cli import main
from zeus_core.cli.metering import MachineMeter
from zeus_core.cli.meters._display import ticks
from zeus_core.cli.meters._energy import _watch
from zeus_core.device import Work
from zeus_core.monitor import ZeusMonitor
from zeus_core.settings.entry import LedgerEntry
from zeus_core.settings.kinds import POWER_LIMIT
from zeus_core.settings.ledger import own_ledger
from zeus_core.testing import FaultyGpu


def rows(output):
    """The lines of numbers: seconds, then one column per device, then the total."""
    return [line.split() for line in output.splitlines() if re.match(r"\s+\d+\.\d ", line)]


def test_power_prints_a_line_per_period_with_a_column_per_gpu(on_driver):
    program, driver = on_driver(DeviceSpec(), DeviceSpec())
    driver[0].set_load(300.0)
    driver[1].set_load(150.0)
    ended = program("power", "--period", "0.1", "--count", "3")
    assert ended.returncode == 0
    assert "GPU 0: NVIDIA H200" in ended.stdout
    assert [row[1:] for row in rows(ended.stdout)] == [["300", "W", "150", "W", "450", "W"]] * 3


def test_power_of_chosen_gpus_only(on_driver):
    program, driver = on_driver(DeviceSpec(), DeviceSpec())
    driver[1].set_load(150.0)
    ended = program("power", "--gpus", "1", "--count", "1")
    assert "GPU 0" not in ended.stdout
    assert [row[1:] for row in rows(ended.stdout)] == [["150", "W", "150", "W"]]


def test_an_unreadable_power_is_a_dash_and_explained_once(on_driver):
    program, driver = on_driver(DeviceSpec(), DeviceSpec())
    for function in ("nvmlDeviceGetPowerUsage", "nvmlDeviceGetFieldValues"):
        driver[0].fail(function, 15)
    ended = program("power", "--period", "0.05", "--count", "3")
    assert [row[1] for row in rows(ended.stdout)] == ["-"] * 3
    assert [row[-1] for row in rows(ended.stdout)] == ["-"] * 3
    assert ended.stderr.count("the power of GPU 0 is not measured") == 1


def test_energy_shows_the_running_total_and_then_the_summary(on_driver):
    program, driver = on_driver(DeviceSpec(), DeviceSpec())
    driver[0].set_load(300.0)
    driver[1].set_load(150.0)
    begin = time.monotonic()
    ended = program("energy", "--period", "0.3", "--seconds", "1")
    seconds = time.monotonic() - begin
    assert ended.returncode == 0
    moments, totals = zip(*((float(row[0]), float(row[5])) for row in rows(ended.stdout)), strict=True)
    assert list(moments) == sorted(moments)
    assert moments[-1] >= 1.0  # which ticks there are, a busy machine has a say in
    assert list(totals) == sorted(totals)
    assert 450 * moments[-1] - 90 <= totals[-1] <= 450 * seconds  # it is read after the tick, on a busy machine late
    (total,) = re.findall(r"total +([\d.]+) ±[\d.]+ J", ended.stdout)
    assert float(total) >= totals[-1]
    assert "counted" in ended.stdout
    assert re.search(r"^  [\d.]+ Wh$", ended.stdout, re.MULTILINE)


def test_a_running_total_lacks_nothing_although_readings_take_long(gpu, time_source, capsys):
    class SlowGpu(FaultyGpu):
        def read_energy_counter_joules(self):
            joules = super().read_energy_counter_joules()
            time_source.advance(0.3)
            return joules

    monitor = ZeusMonitor(gpus=[SlowGpu(gpu)], cpu_indices=[], time_source=time_source)
    gpu.submit(Work(1000.0, 300.0))
    begin = gpu.exact_energy_joules()
    _watch(MachineMeter(monitor, dict.fromkeys(monitor.devices, gpu.name), ()), 1.0, 20.0, is_hidden=False)
    kilojoules = float(rows(capsys.readouterr().out)[-1][-2])
    assert kilojoules == pytest.approx((gpu.exact_energy_joules() - begin) / 1e3, rel=0.05)


def test_energy_until_an_interrupt_ends_with_the_summary(on_simulated):
    process = on_simulated.start("energy", "--period", "0.1")
    lines = iter(process.stdout.readline, "")
    assert any("0.2" in line for line in lines)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    assert "A40 (simulated)" in output
    assert "these GPUs are simulated" in errors
    assert "Traceback" not in errors


def test_a_gpu_lost_meanwhile_is_not_measured_and_not_zero(on_driver):
    program, driver = on_driver(DeviceSpec(), DeviceSpec())
    begin = time.monotonic()
    process = program.start("energy", "--period", "0.1")
    lines = iter(process.stdout.readline, "")
    assert any(rows(line) for line in lines)
    driver[0].lose()
    lost = time.monotonic()
    assert any(row[1] == "-" for line in lines for row in rows(line))
    while time.monotonic() - lost < lost - begin:  # of a short time without the GPU, the energy would be estimated
        process.stdout.readline()
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=240)
    assert "GPU 0  NVIDIA H200  not measured: " in output
    assert "total, at least" in output
    assert errors == ""


def test_a_silent_gpus_power_is_not_shown_as_that_of_another(on_driver):
    program, driver = on_driver(DeviceSpec(), DeviceSpec())
    driver[0].lose()
    ended = program("power", "--count", "1")
    assert ended.returncode == 0
    assert "GPU 0 is not measured" in ended.stderr
    assert "GPU 1: NVIDIA H200" in ended.stdout
    assert "GPU 0: NVIDIA H200" not in ended.stdout


@pytest.mark.parametrize("command", long_but_first(["power", "energy"]))
def test_the_measuring_package_has_the_same_two_commands(on_simulated, command):
    arguments = {"power": ["--count", "1"], "energy": ["--seconds", "0.2"]}[command]
    ended = on_simulated(command, *arguments, module="zeus_core.monitor")
    assert ended.returncode == 0
    assert "GPU 1: A40 (simulated)" in ended.stdout
    refused = on_simulated("devices", module="zeus_core.monitor")
    assert refused.returncode == 2
    assert "python -m zeus_core.monitor" in refused.stderr


@pytest.mark.parametrize("command", ["power", "energy"])
def test_without_anything_to_measure_the_reason_is_one_sentence(on_nothing, command):
    ended = on_nothing(command, "--period", "0.1", *(["--seconds", "0.1"] if command == "energy" else []))
    if ended.returncode == 0:  # this machine lets its CPUs be measured
        assert "GPUs are not measured" in ended.stdout
        return
    assert ended.returncode == 1
    assert "libnvidia-ml.so.1 is not on this machine" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["power", "--gpus", "0,7"], "--gpus is 0,7, but there is no GPU 7; valid indices: 0, 1"),
        (["energy", "--gpus", "2"], "there is no GPU 2; valid indices: 0, 1"),
        (["power", "--gpus", "-1"], "'-1' is not a list of GPU indices"),
        (["power", "--gpus", "one"], "'one' is not a list of GPU indices, such as 0 or 0,1"),
        (["power", "--gpus", "1,1"], "names a GPU twice"),
        (["power", "--period", "0"], "'0' is not a number of seconds above 0"),
        (["power", "--period=-1"], "'-1' is not a number of seconds above 0"),
        (["power", "--period", "nan"], "'nan' is not a number of seconds above 0"),
        (["power", "--count", "0"], "'0' is not a whole number above 0"),
        (["energy", "--seconds", "inf"], "'inf' is not a number of seconds above 0"),
        (["sing"], "there is no command 'sing'; see zeus-core --help"),
    ],
)
def test_wrong_arguments_are_named_and_end_with_2(in_process, arguments, message):
    ended = in_process(*arguments)
    assert ended.returncode == 2
    assert message in ended.stderr
    assert ended.stdout == ""


def test_a_simulation_that_cannot_be_read_is_a_wrong_use(on_simulated):
    on_simulated.environment["ZEUS_SIMULATED_GPUS"] = "Z9000:1"
    ended = on_simulated("power", "--count", "1")
    assert ended.returncode == 2
    assert "there is no GPU model 'Z9000' here" in ended.stderr


def test_a_reader_that_has_seen_enough_ends_it_quietly(on_simulated):
    process = on_simulated.start("power", "--period", "0.02")
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=240) == 141
    errors = process.stderr.read()
    assert "Traceback" not in errors
    assert "Exception ignored" not in errors
    process.stdin.close()
    process.stderr.close()


def test_an_output_that_cannot_show_a_character_shows_another(on_simulated):
    on_simulated.environment["PYTHONIOENCODING"] = "ascii"
    ended = on_simulated("energy", "--seconds", "0.1")
    assert ended.returncode == 0
    assert "?" in ended.stdout


def test_devices_lists_what_each_gpu_is_and_may_be_set_to(on_driver):
    program, driver = on_driver(
        DeviceSpec(default_limit_watts=650, power_limit_watts=450, enforced_cap_watts=400),
        DeviceSpec(name="Tesla P100", has_energy_counter=False, has_power_limit=False, sm_clocks_mhz=()),
    )
    ended = program("devices")
    assert ended.returncode == 0
    header, first, second = ended.stdout.splitlines()[:3]
    assert " ".join(header.split()) == "GPU name UUID power chip limit default range enforced energy counter SM clocks"
    words = "0 NVIDIA H200 {} 75 W 45 °C 450 W 650 W 200 to 700 W 400 W yes 345 to 1980 MHz"
    assert first.split() == words.format(driver[0].uuid).split()
    assert second.split() == f"1 Tesla P100 {driver[1].uuid} 75 W 45 °C - - - - no -".split()


def test_devices_as_json(on_driver):
    program, driver = on_driver(DeviceSpec(), DeviceSpec(has_power_limit=False, sm_clocks_mhz=()))
    listing = json.loads(program("devices", "--json").stdout)
    assert (listing["format"], listing["version"]) == ("zeus-core devices", 1)
    first, second = listing["gpus"]
    assert (first["uuid"], first["power_watts"], first["has_energy_counter"]) == (driver[0].uuid, 75.0, True)
    assert (first["lowest_power_limit_watts"], first["highest_sm_clock_mhz"]) == (200.0, 1980)
    assert (second["power_limit_watts"], second["highest_sm_clock_mhz"]) == (None, None)


def test_devices_without_any_says_why(on_nothing):
    ended = on_nothing("devices")
    assert "No GPUs: opening NVML failed" in ended.stdout
    listing = json.loads(on_nothing("devices", "--json").stdout)
    assert listing["gpus"] == []
    assert "libnvidia-ml" in listing["gpus_unavailable_because"]
    assert ended.returncode == (0 if listing["cpus"] else 1)


def test_devices_says_that_gpus_are_simulated(on_simulated):
    ended = on_simulated("devices")
    assert ended.stdout.count("A40 (simulated)") == 2
    assert "these GPUs are simulated" in ended.stderr


def test_version_and_help(on_nothing):
    assert on_nothing("--version").stdout == f"zeus-core {__version__}\n"
    text = on_nothing("--help").stdout
    assert all(command in text for command in ("devices", "power", "energy", "run", "doctor"))


def test_help_loads_neither_the_binding_nor_the_measuring_parts():
    program = """
import sys
from zeus_core.cli import main
try:
    main(["--help"])
except SystemExit:
    pass
print(*sorted(sys.modules), file=sys.stderr)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(ended.stderr.split())
    assert {"pynvml", "numpy", "rich", "zeus_core.monitor", "zeus_core.device", "zeus_core.cli.run._child"}.isdisjoint(
        loaded
    )


def test_ticks_do_not_drift(time_source):
    moments = []
    for elapsed_seconds in itertools.islice(ticks(time_source, 1.0), 4):
        moments.append(elapsed_seconds)
        time_source.wait(threading.Event(), 0.3)
    assert moments == [0.0, 1.0, 2.0, 3.0]


def test_ticks_that_are_over_are_left_out(time_source):
    moments = []
    for elapsed_seconds in itertools.islice(ticks(time_source, 1.0), 3):
        moments.append(elapsed_seconds)
        time_source.wait(threading.Event(), 1.5)
    assert moments == [0.0, 2.0, 4.0]


@pytest.mark.parametrize(("duration", "moments"), [(2.5, [1.0, 2.0, 2.5]), (2.0, [1.0, 2.0]), (0.5, [0.5])])
def test_the_last_tick_is_at_the_end(time_source, duration, moments):
    assert list(ticks(time_source, 1.0, 1, duration)) == moments


def test_texts_of_a_ledger_and_of_sysfs_reach_no_terminal_raw(tmp_path, monkeypatch, capsys):
    tree = FakeSysfs(tmp_path / "sys")
    board = tree.add()
    board.set_file("product_name", "\x1b[2Jowned")
    board.set_file("device", "\x1b]0;owned\x07")
    monkeypatch.setenv("ZEUS_SYSFS", str(tree.root))
    monkeypatch.setenv("ZEUS_LEDGER_DIR", str(tmp_path / "ledger"))
    monkeypatch.delenv("ZEUS_SIMULATED_GPUS", raising=False)
    (card,) = find_cards(str(tree.root))
    entry = LedgerEntry.of_this_process(card.uuid, "A board\x1b[2J", POWER_LIMIT, 300.0, card.driver)
    own_ledger().note(entry.replacing(program="train\x1b[2J\nforged", job="\x1b]0;owned\x07"))
    for arguments in (["devices"], ["top", "--once"], ["leases"], ["restore"]):
        main(arguments)
    captured = capsys.readouterr()
    text = captured.out + captured.err
    assert "train?[2J?forged" in text
    assert "owned" in text
    assert all(character.isprintable() or character in "\n\t" for character in text)
