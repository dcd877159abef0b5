"""Parts of the command line that need no process of their own."""

import io
import os
import signal
import threading
import time

import pytest

from tests.nvml_driver import DeviceSpec
from zeus_core.cli.metering import MachineMeter, open_meter, summarize, total_to_json
from zeus_core.cli.run._child import spawn
from zeus_core.cli.run._guarded_meter import GuardedMeter, within
from zeus_core.cli.run._reached import ReachedPrograms
from zeus_core.cli.run._run import run_measured
from zeus_core.cli.run._run_options import Asked
from zeus_core.cli.run._run_record import CommandRecord
from zeus_core.cli.run._window_charges import WindowCharges
from zeus_core.cli.run._window_samples import WindowSamples
from zeus_core.cli.text import table, write
from zeus_core.device import Work, discover_cpus
from zeus_core.electricity import Electricity, RecordedSignal
from zeus_core.errors import DriverFaultError
from zeus_core.measurement import Device, DeviceEnergy, Measurement
from zeus_core.monitor import ZeusMonitor
from zeus_core.testing import FakeRapl

PACKAGE = {Device("cpu", 0, "node/0"): DeviceEnergy(30.0, 1.0)}
GPU = {Device("gpu", 0, "GPU-1"): DeviceEnergy(70.0, 5.0)}
LOST = {Device("gpu", 1, "GPU-2"): DeviceEnergy.lost("it fell off the bus")}
NAMES = dict.fromkeys((*PACKAGE, *GPU, *LOST), "H200")


def total_of(energies, seconds):
    return total_to_json(Measurement(seconds, energies))


def summary_of(energies, seconds, notes=()):
    return summarize(Measurement(seconds, energies), NAMES, notes)


def test_cpus_and_their_memory_are_measured_where_they_can_be(make_driver, monkeypatch, tmp_path):
    make_driver(DeviceSpec())
    monkeypatch.delenv("ZEUS_SIMULATED_GPUS", raising=False)
    rapl = FakeRapl(tmp_path)
    package = rapl.add_package(0)
    dram = rapl.add_zone("dram", within=package)
    idle = rapl.add_package(1)
    meter = open_meter(None, discover_cpus(rapl.root))
    meter.begin()
    rapl.add_energy(package, 5_000_000)
    rapl.add_energy(dram, 1_000_000)
    rapl.add_energy(idle, 500_000)
    devices = meter.end().devices
    assert [device.label for device in devices] == ["GPU 0", "CPU 0", "CPU 1", "DRAM 0"]
    assert list(meter.names) == list(devices)
    assert list(meter.names.values()) == ["NVIDIA H200", "package-0", "package-1", "of package-0"]
    assert [energy.energy_joules for energy in devices.values()][1:] == [5.0, 0.5, 1.0]
    assert [energy.method for energy in devices.values()][1:] == ["counted"] * 3
    assert meter.notes == []


def test_a_package_that_is_lost_meanwhile_takes_its_memory_along(make_driver, monkeypatch, tmp_path):
    make_driver(DeviceSpec())
    monkeypatch.delenv("ZEUS_SIMULATED_GPUS", raising=False)
    rapl = FakeRapl(tmp_path)
    package = rapl.add_package(0)
    rapl.add_zone("dram", within=package)
    meter = open_meter(None, discover_cpus(rapl.root))
    meter.begin()
    rapl.remove(package)
    _, *package_and_dram = meter.end().devices.values()
    assert len(package_and_dram) == 2
    for energy in package_and_dram:
        assert (energy.energy_joules, energy.method) == (None, "lost")
        assert "energy_uj is not there" in energy.lost_because


def test_a_total_counts_what_is_known_and_says_whether_that_is_all():
    assert total_of({**PACKAGE, **GPU}, 2.0) == {
        "energy_joules": 100.0,
        "uncertainty_joules": 6.0,
        "average_power_watts": 50.0,
        "energy_kilowatt_hours": pytest.approx(100 / 3.6e6),
        "is_complete": True,
    }
    with_loss = total_of({**PACKAGE, **GPU, **LOST}, 2.0)
    assert (with_loss["energy_joules"], with_loss["is_complete"]) == (100.0, False)
    for energies in (LOST, {}):
        assert set(total_of(energies, 2.0).values()) == {None, False}


def test_what_was_not_measured_is_never_shown_as_a_number():
    assert summary_of(LOST, 2.0) == "  GPU 1  H200  not measured: it fell off the bus"
    assert summary_of({}, 2.0, ["no GPU"]) == "  no GPU"
    assert "total, at least" in summary_of({**GPU, **LOST}, 2.0)


def test_a_window_of_no_time_has_no_power():
    assert total_of(GPU, 0.0)["average_power_watts"] is None
    assert "- on average" in summary_of(GPU, 0.0)


def test_a_function_that_hangs_is_waited_for_only_so_long():
    go_on = threading.Event()
    with pytest.raises(DriverFaultError, match=r"not answered within 0\.05 s"):
        within(0.05, go_on.wait)
    go_on.set()


def test_what_a_function_returns_or_raises_comes_back():
    assert within(10.0, lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        within(10.0, lambda: 1 / 0)


def test_signals_do_not_reach_the_thread_of_a_function():
    found = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    blocked = within(10.0, lambda: signal.pthread_sigmask(signal.SIG_BLOCK, ()))
    assert {signal.SIGINT, signal.SIGTERM} <= blocked
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == found


def test_a_driver_that_hangs_is_given_up_and_the_notes_say_so(make_driver, monkeypatch):
    monkeypatch.delenv("ZEUS_SIMULATED_GPUS", raising=False)
    driver = make_driver(DeviceSpec())
    driver.set_latency(0.5, "nvmlDeviceGetCount")
    meter = GuardedMeter(None, patience_seconds=0.05)
    meter.begin()
    assert meter.end() is None
    (note,) = meter.notes
    assert note.startswith("Energy is not measured: the driver has not answered within 0.05 s; look for NVRM")
    time.sleep(0.6)  # the thread that was given up still holds the driver


def test_a_variable_without_a_name_does_not_keep_a_command_from_running(monkeypatch):
    monkeypatch.setattr(os, "environ", {**os.environ, "": "x"})  # as found where a parent passed "=x" on
    _, status = os.waitpid(spawn(["sh", "-c", "exit 3"], set()), 0)
    assert os.waitstatus_to_exitcode(status) == 3


def test_the_window_ends_before_anything_else_is_read(monkeypatch):
    order = []
    meter = GuardedMeter(None)
    monkeypatch.setattr(meter, "end", lambda: order.append("window"))
    monkeypatch.setattr(ReachedPrograms, "end", lambda _: order.append("journals of trainings"))
    assert run_measured(["true"], meter, is_quiet=True, asked=Asked(finds_trainings=True)) == 0
    assert order == ["window", "journals of trainings"]


def test_a_table_is_aligned():
    assert table([("a", "1"), ("long", "200")], "<>") == "a       1\nlong  200"


def test_no_stream_is_no_output_and_a_poor_one_gets_question_marks():
    write("text", None)
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    write("\u00b11", stream)
    assert stream.buffer.getvalue() == b"?1\n"


def test_the_fields_of_a_record_stay():
    """Programs read them. If one goes or means something else, raise the version of the run file."""
    record = CommandRecord(["true"], 0, 1.0, Measurement(10.0, {**PACKAGE, **GPU}), NAMES, False, ("a note",))
    document = record.to_json()
    assert {name: type(value).__name__ for name, value in document.items()} == {
        "command": "list",
        "exit_code": "int",
        "signal": "NoneType",
        "start_time": "float",
        "seconds": "float",
        "is_simulated": "bool",
        "devices": "list",
        "totals": "dict",
        "notes": "list",
    }
    numbers = dict.fromkeys(["energy_joules", "uncertainty_joules", "average_power_watts"], "float")
    texts = dict.fromkeys(["kind", "uuid", "name", "method"], "str")
    for device in document["devices"]:
        types = {name: type(value).__name__ for name, value in device.items()}
        assert types == {"index": "int", "lost_because": "NoneType", **numbers, **texts}
    totals = {name: type(value).__name__ for name, value in document["totals"].items()}
    assert totals == {"energy_kilowatt_hours": "float", "is_complete": "bool", **numbers}


def test_a_windows_energy_is_charged_at_the_value_of_its_time(time_source, gpu):
    """A third of it was taken at 600 g/kWh, two thirds at 300: the window has seen both."""
    monitor = ZeusMonitor(gpus=[gpu], cpu_indices=[], time_source=time_source)
    intensity = RecordedSignal([1000.0, 1010.0], [600.0, 300.0], "g/kWh", max_age_seconds=100.0)
    meter = MachineMeter(monitor)
    meter.begin()
    samples = WindowSamples(meter, {})
    for _ in range(30):
        gpu.execute(Work(1.0, 300.0))
    measurement = meter.end()
    samples.end(measurement)
    gpu.execute(Work(1.0, 300.0))  # the window is over
    charges = WindowCharges(Electricity(intensity), samples.in_time())
    amount = charges.to_json()["g"]
    mean = (600 * 10 + 300 * (measurement.time - 10)) / measurement.time
    assert amount["amount"] == pytest.approx(measurement.total_energy / 3.6e6 * mean, rel=0.01)
    assert amount["uncertainty"] < 0.1 * amount["amount"]
    (line,) = charges.lines()
    assert "g CO2 equivalent of GPUs, without PUE, at 400 g/kWh" in line
