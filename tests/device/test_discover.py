"""Which GPUs a process measures."""

import logging
import shutil

import pytest

from tests.support.fake_sysfs import FakeSysfs
from zeus_core.device import SimulatedGpu, discover_gpus, find_preset
from zeus_core.device.gpu import SIMULATED_GPUS_VARIABLE
from zeus_core.errors import NoDeviceError, UsageError


def simulated(machine: str):
    return discover_gpus({SIMULATED_GPUS_VARIABLE: machine})


@pytest.mark.parametrize(
    ("machine", "models"),
    [
        ("A100-SXM4-80GB:4", ["A100-SXM4-80GB"] * 4),
        ("A40", ["A40"]),
        ("a40:1,v100:1", ["A40", "V100-PCIE-32GB"]),
        (" H100 : 2 , RTX 6000 ", ["H100-SXM5-80GB", "H100-SXM5-80GB", "Quadro RTX 6000"]),
        ("V100:1,A40:2,V100:1", ["V100-PCIE-32GB", "A40", "A40", "V100-PCIE-32GB"]),
    ],
)
def test_the_variable_asks_for_simulated_gpus_in_its_order(machine, models):
    gpus = simulated(machine)
    assert [gpu.name for gpu in gpus] == [f"{model} (simulated)" for model in models]
    assert all(gpu.is_simulated for gpu in gpus)


@pytest.mark.parametrize("machine", ["A40:4", "A40:2,A40:1", "A40:1,V100:2,A40:3"])
def test_every_simulated_gpu_is_a_device_of_its_own(machine):
    assert len({gpu.uuid for gpu in simulated(machine)}) == len(simulated(machine))


def test_a_simulated_gpu_has_the_index_of_its_place_in_the_list():
    a40 = find_preset("A40")
    assert [gpu.uuid for gpu in simulated("A40:3")] == [SimulatedGpu(a40, index).uuid for index in range(3)]


def test_simulated_gpus_are_the_same_devices_each_time():
    first, second = simulated("A40:1,H100:1"), simulated("A40:1,H100:1")
    assert all(one is other for one, other in zip(first, second, strict=True))


def test_a_changed_list_of_devices_does_not_change_the_machine():
    simulated("H100:2").clear()
    assert len(simulated("H100:2")) == 2


def test_simulation_is_announced_once(caplog):
    machine = "V100:3,H100:2"  # a machine no other test asks for
    with caplog.at_level(logging.WARNING):
        simulated(machine)
        simulated(machine)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert machine in record.getMessage()
    assert "simulated" in record.getMessage()


@pytest.mark.parametrize(
    "machine", ["A40:0", "A40:-1", "A40:x", "A40:", ":2", "A40:1:1", "A40,,V100", "A40,", ",", "A40:1.5", "A40:10000"]
)
def test_an_unreadable_list_is_a_usage_error_with_a_working_example(machine):
    with pytest.raises(UsageError) as raised:
        simulated(machine)
    assert repr(machine) in str(raised.value)
    assert "A100-SXM4-80GB:4" in str(raised.value)


@pytest.mark.parametrize("machine", ["B200:1", "A40:1,B200:1", "A40, ,V100"])
def test_an_unknown_model_is_a_usage_error_that_lists_the_known_ones(machine):
    with pytest.raises(UsageError, match=r"A100-SXM4-80GB.*H100-SXM5-80GB"):
        simulated(machine)


@pytest.mark.parametrize("environment", [{}, {SIMULATED_GPUS_VARIABLE: ""}, {SIMULATED_GPUS_VARIABLE: "  "}])
def test_no_visible_gpu_is_an_error_that_suggests_simulation(environment):
    hidden = {"CUDA_VISIBLE_DEVICES": "-1"}  # on a machine with GPUs; on others the driver is missing
    with pytest.raises(NoDeviceError, match=rf"{SIMULATED_GPUS_VARIABLE}=A100-SXM4-80GB:1"):
        discover_gpus({**environment, **hidden})


def test_a_folder_for_sysfs_that_is_not_there_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("ZEUS_SYSFS", str(tmp_path / "typo"))
    with pytest.raises(NoDeviceError, match=r"^there is no folder .*typo/class/drm\. To try"):
        discover_gpus({"CUDA_VISIBLE_DEVICES": ""})


def test_simulated_gpus_do_not_depend_on_what_cuda_shows():
    assert len(discover_gpus({SIMULATED_GPUS_VARIABLE: "A40:2", "CUDA_VISIBLE_DEVICES": "-1"})) == 2


@pytest.mark.parametrize(
    ("driver", "words"),
    [
        ("amdgpu", r"^there is no AMD GPU in .*; the graphics of a processor are measured as its part\. To try"),
        ("i915", r"^there is no GPU of Intel with sensors in .*; the graphics of a processor are measured as its part"),
    ],
)
def test_the_fault_shown_is_of_the_vendor_that_is_there(tmp_path, monkeypatch, driver, words):
    """A laptop whose processor has graphics, and no other GPU."""
    tree = FakeSysfs(tmp_path)
    board = (
        tree.add("2.3", model="0x1638", name="AMD Radeon Graphics") if driver == "amdgpu" else tree.add_intel(driver)
    )
    if driver == "i915":
        shutil.rmtree(board.folder / "hwmon")
    monkeypatch.setenv("ZEUS_SYSFS", str(tree.root))
    with pytest.raises(NoDeviceError, match=words):
        discover_gpus({})


def test_a_card_of_nvidia_without_a_driver_is_not_hidden_by_the_graphics_of_the_processor(tmp_path, monkeypatch):
    tree = FakeSysfs(tmp_path)
    shutil.rmtree(tree.add_intel("i915").folder / "hwmon")
    card = tree.root / "bus" / "pci" / "devices" / "0000:01:00.0"
    card.mkdir(parents=True)
    (card / "vendor").write_text("0x10de\n")
    (card / "class").write_text("0x030200\n")
    monkeypatch.setenv("ZEUS_SYSFS", str(tree.root))
    with pytest.raises(NoDeviceError, match="NVIDIA driver"):
        discover_gpus({})
