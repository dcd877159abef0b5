"""`zeus-core power`, `energy` and `top`, and what all commands have in common."""

import itertools
import json
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from tests.nvml_driver import DeviceSpec
from tests.support.fake_sysfs import FakeSysfs
from zeus_core import __version__
from zeus_core._sysfs import find_cards
from zeus_core.cli import main
from zeus_core.cli.metering import MachineMeter
from zeus_core.cli.watch import running_total, ticks
from zeus_core.device import Work
from zeus_core.kinds import POWER_LIMIT
from zeus_core.monitor import ZeusMonitor
from zeus_core.settings.entry import LedgerEntry
from zeus_core.settings.ledger import own_ledger
from zeus_core.testing import FaultyGpu


def views(output):
    """The views that follow each other: the seconds since the beginning, and the value of each device and in all."""
    found = []
    for line in output.splitlines():
        if heading := re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d, after (\d+\.\d) s", line):
            found.append((float(heading[1]), {}))
        elif found and (row := re.fullmatch(r"(GPU \d+|total)\b.*?  +(-|[\d.]+ \w+)", line)):
            found[-1][1].setdefault(row[1], row[2])
    return found


def watched(process, count):
    """Look on until there are so many whole views, then Ctrl-C."""
    lines = []
    while len(views("".join(lines))) <= count:
        line = process.stdout.readline()
        assert line, process.stderr.read()
        lines.append(line)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 0
    return "".join(lines) + output, errors


def test_power_shows_each_gpu_and_the_total_once_a_period(on_driver):
    program, driver = on_driver(DeviceSpec(), DeviceSpec())
    driver[0].set_load(300.0)
    driver[1].set_load(150.0)
    output, _ = watched(program.start("power", "--period", "0.1"), 3)
    assert "GPU 0: NVIDIA H200" in output
    assert [shown for _, shown in views(output)][:3] == [{"GPU 0": "300 W", "GPU 1": "150 W", "total": "450 W"}] * 3


def test_power_of_chosen_gpus_only(on_driver):
    program, driver = on_driver(DeviceSpec(), DeviceSpec())
    driver[1].set_load(150.0)
    ended = program("power", "--gpus", "1", "--once")
    assert [line.split()[-2:] for line in ended.stdout.splitlines()] == [["device", "power"], *[["150", "W"]] * 2]
    assert ended.stdout.splitlines()[1].startswith("GPU 1: NVIDIA H200 ")


def test_an_unreadable_power_is_a_dash_and_explained_once(on_driver):
    program, driver = on_driver(DeviceSpec(), DeviceSpec())
    for function in ("nvmlDeviceGetPowerUsage", "nvmlDeviceGetFieldValues"):
        driver[0].fail(function, 15)
    output, errors = watched(program.start("power", "--period", "0.05"), 3)
    assert [shown for _, shown in views(output)][:3] == [{"GPU 0": "-", "GPU 1": "75 W", "total": "-"}] * 3
    assert errors.count("the power of GPU 0 is not measured") == 1


def test_energy_shows_the_running_total_and_then_the_summary(on_driver):
    program, driver = on_driver(DeviceSpec(), DeviceSpec())
    driver[0].set_load(300.0)
    driver[1].set_load(150.0)
    begin = time.monotonic()
    output, _ = watched(program.start("energy", "--period", "0.3"), 3)
    seconds = time.monotonic() - begin
    shown = [(moment, float(energies["total"].split()[0])) for moment, energies in views(output) if "total" in energies]
    moments, totals = zip(*shown, strict=True)
    assert list(moments) == sorted(moments)
    assert moments[-1] >= 0.9  # which ticks there are, a busy machine has a say in
    assert list(totals) == sorted(totals)
    assert 450 * moments[-1] - 90 <= totals[-1] <= 450 * seconds  # it is read after the tick, on a busy machine late
    (total,) = re.findall(r"total +([\d.]+) ±[\d.]+ J", output)
    assert float(total) >= totals[-1]
    assert "counted" in output
    assert re.search(r"^  [\d.]+ Wh$", output, re.MULTILINE)


def test_a_running_total_lacks_nothing_although_readings_take_long(gpu, time_source):
    class SlowGpu(FaultyGpu):
        def read_energy_counter_joules(self):
            joules = super().read_energy_counter_joules()
            time_source.advance(0.3)
            return joules

    monitor = ZeusMonitor(gpus=[SlowGpu(gpu)], cpu_indices=[], time_source=time_source)
    gpu.submit(Work(1000.0, 300.0))
    begin = gpu.exact_energy_joules()
    meter = MachineMeter(monitor)
    meter.begin()
    for seconds in ticks(time_source, 1.0, first=1):
        total = running_total(meter).splitlines()[-1]
        if seconds >= 20.0:
            break
    assert total.endswith(" kJ")
    assert float(total.split()[-2]) == pytest.approx((gpu.exact_energy_joules() - begin) / 1e3, rel=0.05)


def test_energy_until_an_interrupt_ends_with_the_summary(on_simulated):
    output, errors = watched(on_simulated.start("energy", "--period", "0.1"), 1)
    assert output.splitlines()[-5].endswith(" on average")
    assert "A40 (simulated)" in output
    assert "these GPUs are simulated" in errors
    assert "Traceback" not in errors


def test_a_gpu_lost_meanwhile_is_not_measured_and_not_zero(on_driver):
    program, driver = on_driver(DeviceSpec(), DeviceSpec())
    begin = time.monotonic()
    process = program.start("energy", "--period", "0.1")
    lines = iter(process.stdout.readline, "")
    assert any(line.startswith("total") for line in lines)
    driver[0].lose()
    lost = time.monotonic()
    assert any(re.fullmatch(r"GPU 0: .* -\n", line) for line in lines)
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
    ended = program("power", "--once")
    assert ended.returncode == 0
    assert "GPU 0 is not measured" in ended.stderr
    assert "GPU 1: NVIDIA H200" in ended.stdout
    assert "GPU 0: NVIDIA H200" not in ended.stdout


def test_the_power_of_no_gpu_is_not_zero(on_driver):
    program, driver = on_driver(DeviceSpec())
    driver[0].lose()
    ended = program("power", "--once")
    assert "GPU 0 is not measured" in ended.stderr
    assert ended.stdout.split() == ["device", "power", "total", "-"]
    assert json.loads(program("power", "--json").stdout)["power_watts"] is None


@pytest.mark.parametrize("command", ["power", "energy"])
def test_without_anything_to_measure_the_reason_is_one_sentence(on_nothing, command):
    ended = on_nothing(command, "--period", "0.1", "--once")
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
        (["energy", "--period", "inf"], "'inf' is not a number of seconds above 0"),
        (["power", "--count", "3"], "there is no option '--count'; it ends with --once after one view"),
        (["devices"], "there is no command 'devices'; it is now: zeus-core top --once;"),
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
    ended = on_simulated("power", "--once")
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
    ended = on_simulated("energy", "--once", "--period", "0.1")
    assert ended.returncode == 0
    assert "?" in ended.stdout


def test_top_lists_what_each_gpu_is_does_and_may_be_set_to(on_driver):
    program, _ = on_driver(
        DeviceSpec(default_limit_watts=650, power_limit_watts=450, enforced_cap_watts=400),
        DeviceSpec(name="Tesla P100", has_energy_counter=False, has_power_limit=False, sm_clocks_mhz=()),
    )
    ended = program("top", "--once")
    assert ended.returncode == 0
    assert [" ".join(line.split()) for line in ended.stdout.splitlines()] == [
        "GPU name busy memory temp power limit enforced possible SM clock used by",
        "0 NVIDIA H200 100% 0/80 GiB 45 °C 75 W 450 W 400 W 200 to 700 W 1980 MHz -",
        "1 Tesla P100 100% 0/80 GiB 45 °C 75 W - - - - -",
        "",
        "No GPU is controlled.",
    ]


def test_top_as_json(on_driver):
    program, driver = on_driver(DeviceSpec(), DeviceSpec(has_power_limit=False, sm_clocks_mhz=()))
    listing = json.loads(program("top", "--json").stdout)
    assert (listing["format"], listing["version"]) == ("zeus-core top", 2)
    assert (listing["no_gpus_because"], listing["leases"], listing["unreadable"]) == (None, [], [])
    first, second = listing["gpus"]
    assert (first["uuid"], first["power_watts"], first["has_energy_counter"]) == (driver[0].uuid, 75.0, True)
    assert (first["lowest_limit_watts"], first["highest_sm_clock_mhz"]) == (200.0, 1980)
    assert (second["limit_watts"], second["highest_sm_clock_mhz"]) == (None, None)


def test_top_without_a_gpu_says_why_and_shows_the_ledger(on_nothing, tmp_path):
    on_nothing.environment["ZEUS_LEDGER_DIR"] = str(tmp_path)
    (tmp_path / "GPU-1.power_limit.json").write_text("garbage")
    for arguments in (["top", "--once"], ["top"]):
        ended = on_nothing(*arguments)
        assert ended.returncode == 1
        assert "opening NVML failed" in ended.stderr
        assert "GPU-1.power_limit.json cannot be read" in ended.stdout
    listing = json.loads(on_nothing("top", "--json").stdout)
    assert listing["gpus"] == []
    assert "libnvidia-ml" in listing["no_gpus_because"]
    assert listing["unreadable"][0]["path"].endswith("GPU-1.power_limit.json")


def test_top_says_that_gpus_are_simulated(on_simulated):
    ended = on_simulated("top", "--once")
    assert ended.stdout.count("A40 (simulated)") == 2
    assert "these GPUs are simulated" in ended.stderr


def test_version_and_help(on_nothing):
    assert on_nothing("--version").stdout == f"zeus-core {__version__}\n"
    text = on_nothing("--help").stdout
    assert all(command in text for command in ("top", "power", "energy", "run", "doctor"))


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
        time_source.sleep(0.3)
    assert moments == [0.0, 1.0, 2.0, 3.0]


def test_ticks_that_are_over_are_left_out(time_source):
    moments = []
    for elapsed_seconds in itertools.islice(ticks(time_source, 1.0), 3):
        moments.append(elapsed_seconds)
        time_source.sleep(1.5)
    assert moments == [0.0, 2.0, 4.0]


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
    own_ledger().note(replace(entry, program="train\x1b[2J\nforged", job="\x1b]0;owned\x07"))
    for arguments in (["top", "--once"], ["power", "--once"], ["restore"]):
        main(arguments)
    captured = capsys.readouterr()
    text = captured.out + captured.err
    assert "train?[2J?forged" in text
    assert "owned" in text
    assert all(character.isprintable() or character in "\n\t" for character in text)


def test_looking_on_loads_neither_rich_nor_the_training_package(on_simulated):
    program = """
import sys
from zeus_core.cli import main
main(["top", "--once"])
import zeus_core.monitor
print(*sorted(sys.modules), file=sys.stderr)
"""
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, env=on_simulated.environment)
    unwanted = {"rich", "pynvml", "zeus_core.training", "zeus_core.exporter", "zeus_core.cli.doctor"}
    assert unwanted.isdisjoint(ended.stderr.split())


INTERRUPTED = """
import signal
from zeus_core.cli.watch import ticks
from zeus_core.ports.time_source import MonotonicTime

signal.signal(signal.SIGALRM, signal.default_int_handler)
for number in range(2000):
    try:
        signal.setitimer(signal.ITIMER_REAL, 5e-4 + number % 50 * 1e-5)
        for _ in ticks(MonotonicTime(), 1e-5):
            pass
    except KeyboardInterrupt:
        pass
"""


def test_ctrl_c_between_two_ticks_is_nothing_else():
    """Within `threading.Event.wait` it was "release unlocked lock", about 3 times in 1000."""
    subprocess.run([sys.executable, "-c", INTERRUPTED], check=True, timeout=240)
