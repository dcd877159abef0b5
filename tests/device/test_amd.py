"""AMD GPUs by the files of sysfs, on trees laid out as the kernel documents them: nothing here was seen on hardware."""

import contextlib
import os
import shutil
import sys
import types

import pytest

from tests.contracts.gpu import GpuContract
from tests.nvml_driver import DeviceSpec
from tests.support.fake_sysfs import (
    BUSY_WATTS,
    DEFAULT_WATTS,
    HIGHEST_WATTS,
    IDLE_WATTS,
    LOWEST_WATTS,
    ORIGINAL_WATTS,
    TABLES,
    FakeSysfs,
)
from zeus_core._sysfs import find_cards, open_card
from zeus_core.cli.doctor.gpus import gpu_remarks
from zeus_core.device import discover_gpus
from zeus_core.device.cpu import CpuDiscovery
from zeus_core.device.sysfs.amd import AmdGpu
from zeus_core.errors import (
    DeviceError,
    DeviceLostError,
    DriverFaultError,
    NoDeviceError,
    NotSupportedError,
    PermissionDeniedError,
    UsageError,
)
from zeus_core.kinds import POWER_LIMIT
from zeus_core.measurement import Measurement
from zeus_core.monitor import ZeusMonitor

KNOWN = ["1.1", "1.2", "1.3", "1.4", "1.5", "1.6", "1.7", "1.8"]


@pytest.fixture
def tree(tmp_path, monkeypatch):
    tree = FakeSysfs(tmp_path)
    monkeypatch.setenv("ZEUS_SYSFS", str(tree.root))
    return tree


@pytest.fixture
def advancing(tree, time_source):
    """Boards whose time is the virtual one."""
    time_source.repeatedly(lambda: [board.advance(0.05) for board in tree.boards if board.shows_power], 0.05)
    return tree


def open_gpus(tree, time_source):
    return [AmdGpu(card, time_source=time_source) for card in find_cards(str(tree.root))]


def monitor_of(gpus, time_source):
    for gpu in gpus:  # one after another: threads that wait in virtual time at once would move it for each other
        with contextlib.suppress(DeviceError):
            gpu.read_energy_counter_joules()
    return ZeusMonitor(gpus=gpus, cpus=CpuDiscovery((), "none"), time_source=time_source, synchronize=lambda _: None)


class TestAmdGpu(GpuContract):
    @pytest.fixture
    def gpu(self, advancing, time_source):
        advancing.add()
        return open_gpus(advancing, time_source)[0]


def test_it_has_a_lasting_identity_and_a_name(tree):
    tree.add()
    tree.add(serial=False)
    first, second = discover_gpus({})
    assert (first.uuid, second.uuid) == ("GPU-51de0000abcd0000", "GPU-0000:c6:00.0")
    assert first.name == "AMD Instinct MI300X OAM (simulated)"
    assert first.is_simulated
    assert first.driver == "amdgpu"
    assert first.read_sm_clock_mhz() == 1980
    assert (first.read_power_watts(), first.power_average_seconds) == (IDLE_WATTS, 1.0)


def test_boards_of_one_serial_number_are_known_by_their_place(tree):
    for board in (tree.add(), tree.add()):
        board.set_file("unique_id", "51de0000abcd0000\n")
    assert [gpu.uuid for gpu in discover_gpus({})] == ["GPU-0000:c1:00.0", "GPU-0000:c6:00.0"]


@pytest.mark.parametrize("revision", KNOWN)
def test_known_tables_count_the_energy(advancing, time_source, revision):
    board = advancing.add(revision)
    (gpu,) = open_gpus(advancing, time_source)
    gpu.read_energy_counter_joules()
    assert gpu.read_energy_counter_joules() == pytest.approx(board.joules, abs=1 / 65536)


@pytest.mark.parametrize("revision", [name for name in TABLES if name not in KNOWN])
def test_unknown_tables_are_not_read_and_the_power_is(advancing, time_source, revision):
    advancing.add(revision, watts=200.0)
    (gpu,) = open_gpus(advancing, time_source)
    with pytest.raises(NotSupportedError, match="is not known"):
        gpu.read_energy_counter_joules()
    monitor = monitor_of([gpu], time_source)
    measured = window_of(monitor, time_source, 10.0)
    assert measured.of("gpu")[0].method == "integrated"
    assert measured.total_energy == pytest.approx(2000.0, abs=measured.total_uncertainty_joules)


@pytest.mark.parametrize(
    ("energy", "watts", "words"),
    [
        ("zero", IDLE_WATTS, "stands still at 0 J"),
        ("zero", 8.0, "stands still at 0 J"),
        ("frozen", 300.0, "stands still at 5000 J, while the power is 300 W"),
        ("all-ones", 300.0, "says that there is no energy counter"),
    ],
)
def test_counters_that_lie_are_not_used(advancing, time_source, energy, watts, words):
    advancing.add("1.3", energy=energy, watts=watts)
    (gpu,) = open_gpus(advancing, time_source)
    with pytest.raises(NotSupportedError, match=words):
        gpu.read_energy_counter_joules()
    measured = window_of(monitor_of([gpu], time_source), time_source, 10.0)
    assert measured.of("gpu")[0].method == "integrated"
    assert measured.total_energy == pytest.approx(10 * watts, abs=measured.total_uncertainty_joules)


def window_of(monitor, time_source, seconds):
    begin = monitor.read()
    sampled(monitor, time_source, seconds)
    return monitor.between(begin, monitor.read())


def sampled(monitor, time_source, seconds):
    """Let virtual time pass, with the samples of an open window; its own would come in real time."""
    for _ in range(round(seconds / 0.05)):
        time_source.advance(0.05)
        monitor.read()


def test_a_counter_at_another_rate_than_the_power_is_dropped(advancing, time_source, caplog):
    advancing.add(watts=400.0, energy="double")
    (gpu,) = open_gpus(advancing, time_source)
    for _ in range(200):
        try:
            gpu.read_energy_counter_joules()
        except NotSupportedError:
            break
        time_source.advance(0.1)
    assert "the energy counter shows 800 W, and the power 400 W" in gpu.no_counter_because
    assert "it is not used" in caplog.text


def test_a_good_counter_is_kept_through_loads_that_change(advancing, time_source):
    board = advancing.add()
    (gpu,) = open_gpus(advancing, time_source)
    for number in range(450):
        board.watts = 650.0 if number // 7 % 2 else 90.0
        gpu.read_energy_counter_joules()
        time_source.advance(0.1)
    assert gpu.no_counter_because is None


@pytest.mark.parametrize("watts", [IDLE_WATTS, 512.25])
def test_windows_hold_the_truth(advancing, time_source, watts):
    board = advancing.add(watts=watts)
    monitor = monitor_of(open_gpus(advancing, time_source), time_source)
    before = board.joules
    measured = window_of(monitor, time_source, 30.0)
    assert measured.of("gpu")[0].method == "counted"
    assert measured.total_energy == pytest.approx(board.joules - before, abs=measured.total_uncertainty_joules)
    assert measured.total_uncertainty_joules < 0.02 * measured.total_energy


# Limits.


def test_limits_are_in_the_range_of_the_moment_and_are_read_back(tree):
    board = tree.add()
    (gpu,) = discover_gpus({})
    assert gpu.read_power_limit_range_watts() == (LOWEST_WATTS, HIGHEST_WATTS)
    assert (gpu.read_power_limit_watts(), gpu.read_default_power_limit_watts()) == (ORIGINAL_WATTS, DEFAULT_WATTS)
    gpu.set_power_limit(400)
    assert board.cap_watts == gpu.read_enforced_power_limit_watts() == 400
    tree.set_range(board, 500, 600)
    for limit_watts in (400, 650, 0, float("nan")):
        with pytest.raises(UsageError, match="500 to 600 W"):
            gpu.set_power_limit(limit_watts)
    assert board.cap_watts == 400


def test_a_kernel_that_does_not_tell_the_lowest_limit_has_half_the_default(tree):
    tree.set_range(tree.add(), 0, HIGHEST_WATTS)
    (gpu,) = discover_gpus({})
    assert gpu.read_power_limit_range_watts() == (DEFAULT_WATTS / 2, HIGHEST_WATTS)


def test_the_clock_is_refused_by_name(tree):
    tree.add()
    (gpu,) = discover_gpus({})
    for call in (lambda: gpu.lock_sm_clock(1000), gpu.unlock_sm_clock, gpu.read_supported_sm_clocks_mhz):
        with pytest.raises(NotSupportedError, match=r"SM clock of AMD Instinct MI300X OAM .* is not supported yet"):
            call()


def test_without_the_right_the_message_has_the_command(tree, monkeypatch):
    board = tree.add()
    (gpu,) = discover_gpus({})
    opened = os.open

    def open_read_only(path, flags, *arguments, **options):  # root may write in spite of the mode
        if flags & os.O_WRONLY:
            raise PermissionError(13, "Permission denied", path)
        return opened(path, flags, *arguments, **options)

    monkeypatch.setattr(os, "open", open_read_only)
    with pytest.raises(PermissionDeniedError, match=r"echo 400000000 \| sudo tee \S+power1_cap"):
        gpu.set_power_limit(400)
    assert board.cap_watts == ORIGINAL_WATTS


def test_a_limit_that_is_ignored_in_silence_is_a_fault(tree):
    tree.add()
    (card,) = find_cards(str(tree.root))
    card.set_power_limit = lambda limit_watts: None
    with pytest.raises(DriverFaultError, match="still holds 700 W"):
        AmdGpu(card).set_power_limit(400)


# Several devices, and which of them belong together.


def mi250(tree):
    first = tree.add("1.3", model="0x740c", name="AMD Instinct MI250X")
    return first, tree.add_second_die()


def test_two_dies_are_one_board_that_is_counted_once(tree, time_source, caplog):
    boards = [mi250(tree)[0] for _ in range(4)]
    time_source.repeatedly(lambda: [board.advance(0.1, 300.0) for board in boards], 0.1)
    gpus = discover_gpus({})
    assert len(gpus) == 8
    assert [gpu.uuid for gpu in gpus[::2]] == [gpu.uuid for gpu in gpus[1::2]]
    assert gpus[0].name == "AMD Instinct MI250X, 2 dies (simulated)"
    timed = {gpu: AmdGpu(gpu._card, time_source=time_source) for gpu in gpus}
    monitor = monitor_of([timed[gpu] for gpu in gpus], time_source)
    assert monitor.gpu_indices == [0, 2, 4, 6]
    measured = window_of(monitor, time_source, 10.0)
    assert measured.total_energy == pytest.approx(4 * 300 * 10, abs=measured.total_uncertainty_joules)
    assert "GPU 1 is a part of the same board as GPU 0" in caplog.text


def test_dies_belong_together_by_the_serial_number_of_their_board(tree):
    """The order on the bus is another one: the second die of the first board, both first ones, the other second one."""
    boards = [tree.add_second_die(), *[tree.add("1.3", model="0x740c") for _ in range(2)], tree.add_second_die()]
    for board, serial in zip(boards, ("PCB01", "PCB02", "PCB01", "PCB02"), strict=True):
        board.set_file("serial_number", f"{serial}\n")
    gpus = {gpu.uuid[-1]: gpu.pci_addresses for gpu in discover_gpus({})}
    assert gpus == {"1": {"0000:c6:00", "0000:d0:00"}, "2": {"0000:c1:00", "0000:cb:00"}}


def test_a_second_die_before_the_first_is_a_part_of_its_board_too(tree):
    second, first = tree.add_second_die(), tree.add("1.3", model="0x740c")
    assert [gpu.uuid for gpu in discover_gpus({})] == ["GPU-51de0000abcd0001"] * 2
    first.set_file("serial_number", "PCB01\n")
    second.set_file("serial_number", "PCB02\n")
    assert len({gpu.uuid for gpu in discover_gpus({})}) == 2, "of another board, whose first die is not shown"


def test_windows_wait_for_all_dies_of_a_board(tree, time_source):
    mi250(tree)
    waited = []
    ZeusMonitor(gpus=discover_gpus({}), time_source=time_source, synchronize=waited.append).read()
    assert waited == [[0, 1]]


def test_eight_ranks_count_four_boards_once(tree, time_source, monkeypatch):
    boards = [mi250(tree)[0] for _ in range(4)]
    time_source.repeatedly(lambda: [board.advance(0.1, 300.0) for board in boards], 0.1)
    gpus = [AmdGpu(gpu._card, time_source=time_source) for gpu in discover_gpus({})]
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    monitors = []
    for rank in range(8):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        monitors.append(monitor_of(gpus, time_source))
    begins = [monitor.read() for monitor in monitors]
    for _ in range(100):
        time_source.advance(0.1)
        for monitor in monitors:
            monitor.read()
    edges = zip(monitors, begins, strict=True)
    job = Measurement.from_ranks([monitor.between(begin, monitor.read()) for monitor, begin in edges])
    assert len(job.gpu_energy) == 4
    assert job.total_energy == pytest.approx(4 * 300 * 10, abs=job.total_uncertainty_joules)


def test_a_die_alone_warns_that_the_board_is_measured(tree, caplog):
    mi250(tree)
    (gpu,) = discover_gpus({"HIP_VISIBLE_DEVICES": "1"})
    assert gpu.uuid == "GPU-51de0000abcd0000"
    assert "one die is used" in caplog.text


def test_a_second_die_without_its_board_is_not_measured(tree, time_source):
    tree.add_second_die()
    monitor = monitor_of(discover_gpus({}), time_source)
    measured = window_of(monitor, time_source, 5.0)
    assert measured.total_energy is None
    assert "shows 0 W" in measured.lost_because["GPU 0"]


def test_partitions_are_one_board(tree):
    boards = [tree.add() for _ in range(2)]
    tree.add_topology(boards[1], boards[1], boards[0], boards[0])
    assert [gpu.uuid[-1] for gpu in discover_gpus({})] == ["1", "1", "0", "0"]


def test_nodes_of_partitions_without_vendor_are_passed_over(tree):
    tree.add()
    (tree.root / "class" / "drm" / "card7" / "device").mkdir(parents=True)
    (tree.root / "class" / "drm" / "card7" / "device" / "uevent").write_text("DRIVER=amdgpu_xcp_drv\n")
    assert len(discover_gpus({})) == 1


def test_a_tree_of_another_shape_is_read_as_well(tree):
    """Other numbers, an absolute link, sensors of the moment, connectors, and a device that no driver has."""
    board = tree.add()
    (board.folder / "gpu_metrics").unlink()
    (board.hwmon / "power1_average").rename(board.hwmon / "power1_input")
    board.hwmon.rename(board.hwmon.with_name("hwmon17"))
    drm = tree.root / "class" / "drm"
    (drm / "card0").rename(drm / "card1")
    (drm / "card1" / "device").unlink()
    (drm / "card1" / "device").symlink_to(board.folder.resolve())
    for name in ("card1-DP-1", "renderD128", "card0/device"):
        (drm / name).mkdir(parents=True)
    for name, text in {"vendor": "0x1002\n", "uevent": "PCI_CLASS=30000\nPCI_SLOT_NAME=0000:07:00.0\n"}.items():
        (drm / "card0" / "device" / name).write_text(text)
    (gpu,) = discover_gpus({})
    assert (gpu.uuid, gpu.read_power_watts()) == ("GPU-51de0000abcd0000", IDLE_WATTS)
    assert (gpu.power_average_seconds, gpu.read_power_limit_watts()) == (0.0, ORIGINAL_WATTS)


@pytest.mark.parametrize(
    ("variables", "places"),
    [
        ({}, "2013"),
        ({"ROCR_VISIBLE_DEVICES": "1,3"}, "03"),
        ({"ROCR_VISIBLE_DEVICES": "3,0", "HIP_VISIBLE_DEVICES": "1"}, "2"),
        ({"ROCR_VISIBLE_DEVICES": "GPU-51de0000abcd0001,GPU-51de0000abcd0003"}, "13"),
        ({"HIP_VISIBLE_DEVICES": "0,2", "CUDA_VISIBLE_DEVICES": "1"}, "21"),
        ({"CUDA_VISIBLE_DEVICES": "3"}, "3"),
        ({"ROCR_VISIBLE_DEVICES": "0,1", "CUDA_VISIBLE_DEVICES": "1,0"}, "02"),
        ({"HIP_VISIBLE_DEVICES": "0,-1,2"}, "2"),
    ],
)
def test_variables_are_applied_as_rocm_applies_them(tree, variables, places):
    boards = [tree.add() for _ in range(4)]
    tree.add_topology(boards[2], boards[0], boards[1], boards[3])
    assert "".join(gpu.uuid[-1] for gpu in discover_gpus(variables)) == places


def test_no_visible_board_is_a_clear_error(tree):
    tree.add()
    with pytest.raises(NoDeviceError, match="no GPU is visible"):
        discover_gpus({"ROCR_VISIBLE_DEVICES": "7"})


class RocmTorch:
    """The part of torch that is used here, built for ROCm."""

    version = types.SimpleNamespace(hip="6.4", cuda=None)

    def __init__(self, buses, is_initialized=True):
        self.cuda, self._buses = self, buses
        self.is_initialized, self.is_available = (lambda: is_initialized), (lambda: True)
        self.device_count = lambda: len(buses)

    def get_device_properties(self, index):
        return types.SimpleNamespace(uuid="other", pci_domain_id=0, pci_bus_id=self._buses[index], pci_device_id=0)


def test_indices_are_those_of_torch_by_pci_address(tree, monkeypatch):
    for _ in range(3):
        tree.add()
    monkeypatch.setitem(sys.modules, "torch", RocmTorch([0xCB, 0xC1]))
    assert [gpu.uuid[-1] for gpu in discover_gpus({})] == ["2", "0"]


def test_nvml_is_not_opened_for_rocm(tree, make_driver, monkeypatch):
    driver = make_driver(DeviceSpec())
    tree.add()
    monkeypatch.setitem(sys.modules, "torch", RocmTorch([], is_initialized=False))
    assert [gpu.uuid for gpu in discover_gpus({})] == ["GPU-51de0000abcd0000"]
    assert not list(driver.calls())


def test_two_vendors_are_found_side_by_side(tree, make_driver, caplog):
    driver = make_driver(DeviceSpec(), DeviceSpec())
    tree.add()
    assert [gpu.uuid for gpu in discover_gpus({})] == [driver[0].uuid, driver[1].uuid, "GPU-51de0000abcd0000"]
    driver.fail("nvmlDeviceGetCount", 999)
    assert [gpu.uuid for gpu in discover_gpus({})] == ["GPU-51de0000abcd0000"]
    assert "some GPUs are left out" in caplog.text
    shutil.rmtree(tree.root)
    with pytest.raises(DriverFaultError, match="NVML error 999"):
        discover_gpus({})


def test_graphics_of_a_processor_are_used_by_rocm_alone(tree, monkeypatch):
    tree.add("2.3", name="AMD Radeon Graphics")
    with pytest.raises(NoDeviceError):
        discover_gpus({})
    monkeypatch.setitem(sys.modules, "torch", RocmTorch([], is_initialized=False))
    assert len(discover_gpus({})) == 1


def test_the_folder_is_named_in_a_warning(tree, caplog):
    tree.add()
    discover_gpus({})
    assert f"ZEUS_SYSFS={tree.root}: these GPUs are simulated" in caplog.text


# Trees that are broken.


def break_file(path, how):
    if how == "missing":
        path.unlink()
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "garbage":
        path.write_bytes(b"\xff\xfenot a number\n")
    elif how == "huge":
        path.write_bytes(b"9" * 100_000)
    elif how == "truncated":
        path.write_bytes(path.read_bytes()[:7])
    elif how == "folder":
        path.unlink()
        path.mkdir()


FILES = [
    *("vendor", "device", "unique_id", "uevent", "product_name", "gpu_metrics", "hwmon/hwmon3/name"),
    *(f"hwmon/hwmon3/power1_{name}" for name in ("average", "cap", "cap_min", "cap_max", "cap_default")),
]


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("how", ["missing", "empty", "garbage", "huge", "truncated", "folder"])
def test_a_broken_file_costs_one_number_and_no_other_board(tree, time_source, file, how):
    boards = broken, _ = tree.add(watts=200.0), tree.add(watts=200.0)
    break_file(broken.folder / file, how)
    gpus = [AmdGpu(gpu._card, time_source=time_source) for gpu in discover_gpus({})]
    assert len(gpus) == 2
    assert len(gpus[0].name) < 80
    time_source.repeatedly(lambda: let_pass(boards, file), 0.05)
    measured = window_of(monitor_of(gpus, time_source), time_source, 1.0)
    energies = measured.of("gpu")
    assert measured.gpu_energy[1] == pytest.approx(200.0, abs=energies[1].uncertainty_joules)
    if file in (
        "hwmon/hwmon3/power1_average",
        "gpu_metrics",
    ):
        assert measured.gpu_energy[0] is None or measured.gpu_energy[0] == pytest.approx(
            200.0, abs=energies[0].uncertainty_joules
        )
    else:
        assert measured.gpu_energy[0] == pytest.approx(200.0, abs=energies[0].uncertainty_joules)


def let_pass(boards, broken_file):
    """Advance both boards, of the first all files but the broken one."""
    path = boards[0].folder / broken_file
    content = path.read_bytes() if path.is_file() else None
    if path.is_dir():
        path.rmdir()
    for board in boards:
        board.advance(0.05)
    path.unlink(missing_ok=True)
    if content is not None:
        path.write_bytes(content)


def test_a_board_that_sleeps_answers_again_when_it_wakes(advancing, time_source, monkeypatch):
    advancing.add(watts=200.0)
    monitor = monitor_of(open_gpus(advancing, time_source), time_source)
    read = os.read

    def refuse(descriptor, size):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "read", refuse)
    measured = window_of(monitor, time_source, 5.0)
    assert measured.total_energy is None
    assert "the board sleeps" in measured.lost_because["GPU 0"]
    monkeypatch.setattr(os, "read", read)
    window_of(monitor, time_source, 5.0)
    measured = window_of(monitor, time_source, 5.0)
    assert measured.total_energy == pytest.approx(1000.0, abs=measured.total_uncertainty_joules)


def test_a_board_that_is_unplugged_loses_its_energy_alone(advancing, time_source):
    lost, stays = advancing.add(watts=200.0), advancing.add(watts=200.0)
    gpus = open_gpus(advancing, time_source)
    monitor = monitor_of(gpus, time_source)
    begin = monitor.read()
    sampled(monitor, time_source, 2.0)
    advancing.boards.remove(lost)
    shutil.rmtree(lost.folder)
    sampled(monitor, time_source, 8.0)
    measured = monitor.between(begin, monitor.read())
    assert measured.gpu_energy[0] is None
    assert "is gone" in measured.lost_because["GPU 0"]
    assert measured.gpu_energy[1] == pytest.approx(2000.0, abs=measured.of("gpu")[1].uncertainty_joules)
    with pytest.raises(DeviceLostError):
        gpus[0].set_power_limit(400)
    assert stays.cap_watts == ORIGINAL_WATTS


def test_no_command_writes_the_file_of_a_board_that_is_gone(tree):
    gone, there = tree.add(), tree.add()
    uuids = [gpu.uuid for gpu in discover_gpus({})]
    shutil.rmtree(gone.folder)
    command = POWER_LIMIT.command(uuids[:1], 700)
    assert command == f"zeus-core restore --stale  # once {uuids[0]} is there again"
    assert POWER_LIMIT.command(uuids, 700).count("tee") == 1
    assert str(there.folder) in POWER_LIMIT.command(uuids, 700)


def test_why_there_is_no_counter_is_a_remark(tree):
    tree.add("1.9")
    tree.add("1.8")
    unknown, known = gpu_remarks(discover_gpus({}))
    assert unknown == "gpu_metrics 1.9 of 512 bytes is not known: there is no energy counter"
    assert "not known" not in str(known)


def test_restoring_opens_a_board_by_its_identity(tree):
    board = tree.add()
    card = open_card("GPU-51de0000abcd0000")
    card.set_power_limit(350)
    assert board.cap_watts == card.read_power_limit_watts() == 350
    with pytest.raises(NoDeviceError, match="GPU-51de0000abcd0009"):
        open_card("GPU-51de0000abcd0009")
    assert BUSY_WATTS <= ORIGINAL_WATTS
