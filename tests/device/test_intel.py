"""Intel's GPUs by the files of i915 and xe, on trees laid out as the kernel documents them: nothing here was seen on
hardware."""

import os
import shutil
import sys
import types

import pytest

from tests.contracts.gpu import GpuContract
from tests.device.test_amd import monitor_of, sampled, window_of
from tests.nvml_driver import DeviceSpec
from tests.support.fake_sysfs import FakeSysfs
from zeus_core._sysfs import find_cards, open_card
from zeus_core.device import discover_gpus
from zeus_core.device.sysfs.intel import IntelGpu
from zeus_core.errors import DriverFaultError, NoDeviceError, NotSupportedError, PermissionDeniedError, UsageError
from zeus_core.measurement import Measurement
from zeus_core.ports.accelerator import synchronize_with


@pytest.fixture
def tree(tmp_path, monkeypatch):
    tree = FakeSysfs(tmp_path)
    monkeypatch.setenv("ZEUS_SYSFS", str(tree.root))
    return tree


@pytest.fixture
def advancing(tree, time_source):
    """Boards whose time is the virtual one."""
    time_source.repeatedly(lambda: [board.advance(0.05) for board in tree.boards], 0.05)
    return tree


def open_gpus(tree, time_source):
    return [IntelGpu(card, time_source=time_source) for card in find_cards(str(tree.root))]


@pytest.mark.parametrize("driver", ["i915", "xe"])
class TestIntelGpu(GpuContract):
    @pytest.fixture
    def gpu(self, advancing, time_source, driver):
        advancing.add_intel(driver)
        return open_gpus(advancing, time_source)[0]


@pytest.mark.parametrize("driver", ["i915", "xe"])
def test_it_has_a_lasting_identity_a_name_and_sensors(tree, time_source, driver):
    board = tree.add_intel(driver)
    (gpu,) = discover_gpus({})
    assert (gpu.uuid, gpu.driver) == ("GPU-0000:03:00.0", driver)
    assert gpu.name == "Intel GPU 0x56a0 (simulated)"
    assert gpu.limit_path == str((board.hwmon / "power1_max").resolve())
    assert (gpu.read_temperature_celsius(), gpu.read_sm_clock_mhz()) == (61.0, 1980)
    assert gpu.read_power_limit_range_watts() == (150, 300)
    board.set_file("hwmon/hwmon3/power1_max", "320000000\n")
    assert gpu.read_power_limit_range_watts() == (150, 320)
    assert gpu.read_default_power_limit_watts() == 300


@pytest.mark.parametrize("watts", [35.0, 412.25])
def test_windows_hold_the_truth(advancing, time_source, watts):
    board = advancing.add_intel(watts=watts)
    gpus = open_gpus(advancing, time_source)
    assert gpus[0].read_power_watts() == pytest.approx(watts, rel=1e-3)
    monitor, before = monitor_of(gpus, time_source), board.joules
    measured = window_of(monitor, time_source, 30.0)
    assert measured.of("gpu")[0].method == "counted"
    assert measured.total_energy == pytest.approx(board.joules - before, abs=measured.total_uncertainty_joules)
    assert measured.total_uncertainty_joules < 0.03 * measured.total_energy


@pytest.mark.parametrize("is_raw", [False, True])
def test_wraps_are_exact_over_hours_if_read_each_minute(tree, time_source, is_raw):
    board = tree.add_intel(watts=600.0)
    (card,) = find_cards(str(tree.root))
    gpu = IntelGpu(board.read_through(card), time_source)
    begin, first = board.joules, gpu.read_energy_counter_joules()
    for _ in range(6 * 60):
        time_source.advance(60.0)
        board.joules += 60.0 * board.watts
        if is_raw:  # a driver that shows the register itself
            board._sum = int(board.joules * 2**14) % 2**32
            board._register = board._sum
        gpu.read_energy_counter_joules()
    wraps = (board.joules - begin) / 2**18
    assert wraps > 40
    assert gpu.read_energy_counter_joules() - first == pytest.approx(board.joules - begin, abs=wraps / 2**14 + 1e-3)


def test_a_driver_that_was_reloaded_is_no_wrap(advancing, time_source):
    board = advancing.add_intel(watts=100.0)
    (gpu,) = open_gpus(advancing, time_source)
    monitor = monitor_of([gpu], time_source)
    begin = monitor.read()
    sampled(monitor, time_source, 5.0)
    board._sum = 0
    sampled(monitor, time_source, 5.0)
    measured = monitor.between(begin, monitor.read())
    assert measured.total_energy == pytest.approx(1000.0, abs=measured.total_uncertainty_joules)
    assert measured.total_uncertainty_joules < 200


def test_a_thread_reads_the_counter_each_minute(advancing, time_source):
    advancing.add_intel()
    (gpu,) = open_gpus(advancing, time_source)
    assert not gpu._keeper.is_running
    gpu.read_energy_counter_joules()
    assert gpu._keeper.is_running


def test_a_counter_that_stands_still_gives_no_power(tree, time_source):
    tree.add_intel()
    (gpu,) = open_gpus(tree, time_source)
    with pytest.raises(DriverFaultError, match=r"has not moved for 0\.3 s"):
        gpu.read_power_watts()


def test_boards_at_one_place_of_two_nodes_are_two(advancing, time_source, monkeypatch):
    advancing.add_intel(watts=100.0)
    measured = []
    for node in ("node-a", "node-b"):
        monkeypatch.setattr("zeus_core.device.gpu.machine_name", lambda node=node: node)
        measured.append(window_of(monitor_of(open_gpus(advancing, time_source), time_source), time_source, 5.0))
    job = Measurement.from_ranks(measured)
    assert len(job.gpu_energy) == 2
    assert job.total_energy == pytest.approx(1000.0, abs=job.total_uncertainty_joules)


# Limits.


def test_limits_are_read_back_and_zero_is_never_written(tree):
    board = tree.add_intel()
    (gpu,) = discover_gpus({})
    gpu.set_power_limit(200)
    assert board.cap_watts == gpu.read_enforced_power_limit_watts() == 200
    for limit_watts in (0, 1e-7, 149, 301, float("nan")):
        with pytest.raises(UsageError, match="150 to 300 W"):
            gpu.set_power_limit(limit_watts)
    with pytest.raises(UsageError, match="more than 0 W"):
        open_card(gpu.uuid).set_power_limit(1e-7)
    assert board.cap_watts == 200


def test_a_limit_that_is_switched_off_is_not_touched(tree):
    board = tree.add_intel(limit_watts=0)
    (gpu,) = discover_gpus({})
    with pytest.raises(NotSupportedError, match="disabled"):
        gpu.set_power_limit(200)
    assert board.cap_watts == 0


def test_limits_clamped_in_silence_are_read_back(tree):
    board = tree.add_intel(clamp_watts=200)
    (card,) = find_cards(str(tree.root))
    gpu = IntelGpu(board.read_through(card))
    for limit_watts in (160, 150, 250):
        gpu.set_power_limit(limit_watts)
        assert gpu.read_power_limit_watts() == max(limit_watts, 200)


def test_a_limit_that_is_locked_is_a_fault(tree):
    tree.add_intel()
    (card,) = find_cards(str(tree.root))
    card.set_power_limit = lambda limit_watts: None
    with pytest.raises(DriverFaultError, match="still holds 280 W"):
        IntelGpu(card).set_power_limit(200)


def test_without_a_rated_power_the_limit_found_is_the_highest(tree):
    board = tree.add_intel()
    (board.hwmon / "power1_rated_max").unlink()
    (gpu,) = discover_gpus({})
    for _ in range(2):
        assert gpu.read_power_limit_range_watts() == (140, 280)
        gpu.set_power_limit(150)
    gpu.set_power_limit(280)


def test_without_a_limit_it_is_measured_all_the_same(advancing, time_source):
    board = advancing.add_intel(watts=120.0)
    for name in ("max", "rated_max"):
        (board.hwmon / f"power1_{name}").unlink()
    (gpu,) = open_gpus(advancing, time_source)
    with pytest.raises(NotSupportedError, match="accepts no power limit"):
        gpu.read_power_limit_range_watts()
    measured = window_of(monitor_of([gpu], time_source), time_source, 10.0)
    assert measured.total_energy == pytest.approx(1200.0, abs=measured.total_uncertainty_joules)


def test_where_the_card_has_no_sensor_its_package_has(advancing, time_source):
    board = advancing.add_intel(channel=2, watts=150.0)
    (gpu,) = open_gpus(advancing, time_source)
    assert gpu.read_power_watts() == pytest.approx(150.0, rel=1e-3)
    gpu.set_power_limit(200)
    assert board.cap_watts == 200


def test_without_the_right_the_message_has_the_command(tree, monkeypatch):
    tree.add_intel()
    (gpu,) = discover_gpus({})
    opened = os.open

    def open_read_only(path, flags, *arguments, **options):  # root may write in spite of the mode
        if flags & os.O_WRONLY:
            raise PermissionError(13, "Permission denied", path)
        return opened(path, flags, *arguments, **options)

    monkeypatch.setattr(os, "open", open_read_only)
    with pytest.raises(PermissionDeniedError, match=r"echo 200000000 \| sudo tee \S+power1_max"):
        gpu.set_power_limit(200)


# Which GPUs there are, and which of them torch means.


class XpuTorch:
    """The part of torch that is used here, built for XPU."""

    version = types.SimpleNamespace(hip=None, cuda=None, xpu="20250101")

    def __init__(self, uuids):
        self.xpu, self._uuids = self, uuids
        self.is_available = self.is_initialized = lambda: True
        self.device_count = lambda: len(uuids)
        self.waited, self._C = [], None
        self.synchronize = self.waited.append
        self.backends = types.SimpleNamespace(mps=types.SimpleNamespace(is_available=lambda: False))

    def get_device_properties(self, index):
        return types.SimpleNamespace(uuid=self._uuids[index])


def test_indices_are_those_of_torch_by_pci_address(tree, make_driver, monkeypatch):
    make_driver(DeviceSpec())
    tree.add()
    for _ in range(3):
        tree.add_intel()
    uuids = [f"8680a056-0800-0000-{bus:02x}00-000000000000" for bus in (5, 4)]
    monkeypatch.setitem(sys.modules, "torch", XpuTorch(uuids))
    assert [gpu.uuid for gpu in discover_gpus({})] == ["GPU-0000:05:00.0", "GPU-0000:04:00.0"]


def test_windows_wait_for_the_gpus_of_torch(monkeypatch):
    torch = XpuTorch(["", ""])
    monkeypatch.setitem(sys.modules, "torch", torch)
    synchronize_with("torch")([0, 1])
    assert torch.waited == [0, 1]


def test_without_their_place_it_is_said_that_indices_are_those_of_pci(tree, monkeypatch, caplog):
    for _ in range(2):
        tree.add_intel()
    monkeypatch.setitem(sys.modules, "torch", XpuTorch(["", ""]))
    assert [gpu.uuid[-7:] for gpu in discover_gpus({})] == ["03:00.0", "04:00.0"]
    assert "torch does not say which of 2 GPUs of Intel is which" in caplog.text


@pytest.mark.parametrize(("mask", "places"), [("2,0", "53"), ("1.0,1.1", "4"), ("0.1", "3"), ("", "345")])
def test_the_affinity_mask_chooses_boards(tree, mask, places):
    for _ in range(3):
        tree.add_intel()
    found = discover_gpus({"ZE_AFFINITY_MASK": mask})
    assert "".join(gpu.uuid[len("GPU-0000:0")] for gpu in found) == places


def test_graphics_of_a_processor_are_passed_over(tree):
    board = tree.add_intel("i915")
    shutil.rmtree(board.folder / "hwmon")
    with pytest.raises(NoDeviceError):
        discover_gpus({})


def test_three_vendors_are_found_side_by_side(tree, make_driver):
    driver = make_driver(DeviceSpec())
    tree.add_intel()
    tree.add()
    assert [gpu.driver for gpu in discover_gpus({})] == ["nvml", "amdgpu", "xe"]
    driver.fail("nvmlDeviceGetCount", 999)
    assert [gpu.driver for gpu in discover_gpus({})] == ["amdgpu", "xe"]


def test_restoring_opens_a_board_by_its_identity(tree):
    board = tree.add_intel()
    open_card("GPU-0000:03:00.0").set_power_limit(222)
    assert board.cap_watts == 222
