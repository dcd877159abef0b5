"""`zeus-core doctor`: it finds what is missing, and changes nothing."""

import itertools
import json
import os
import shlex
import sys

import pytest

from tests.cli.conftest import Program
from tests.nvml_driver import DeviceSpec
from tests.support.fake_sysfs import FakeSysfs
from zeus_core._sysfs import find_cards
from zeus_core.cli import main
from zeus_core.cli.doctor import machine, rights
from zeus_core.cli.doctor.gpus import check_limits, still_counters
from zeus_core.cli.doctor.machine import Driver, check_driver, check_rapl
from zeus_core.cli.doctor.rights import Rights, check_clock_rights, check_limit_rights, read_rights, rights_of
from zeus_core.device import discover_gpus
from zeus_core.device import rapl as rapl_module
from zeus_core.device.nvml.nvml_gpu import NvmlGpu
from zeus_core.device.nvml.nvml_session import NvmlSession
from zeus_core.device.nvml.return_codes import device_error
from zeus_core.device.rapl import why_no_zones
from zeus_core.device.sysfs.amd import AmdGpu
from zeus_core.testing import FakeRapl

PYTHON = shlex.quote(sys.executable)

NAMES = {
    *("python", "zeus-core", "nvidia-ml-py", "NVIDIA driver", "GPUs"),
    *("set power limits", "lock clocks", "CPU energy"),
}
EVERYTHING, ALL_BUT_SYS_ADMIN, NOTHING = "CapEff:\t000001ffffffffff\n", "CapEff:\t000001ffffdfffff\n", "CapEff:\t0\n"
OF_THE_MACHINE, OF_A_NAMESPACE = "         0          0 4294967295\n", "         0       1000          1\n"


def checks_of(ended, code=0):
    assert ended.returncode == code, ended.stderr
    report = json.loads(ended.stdout)
    assert (report["format"], report["version"]) == ("zeus-core doctor", 1)
    for check in report["checks"]:
        assert set(check) == {"name", "state", "sentence", "fix"}
        assert check["state"] in {"ok", "limited", "missing"}
    return {check["name"]: check for check in report["checks"]}


def here(fix):
    """A command without the remark that it is one for the host, if this is a container."""
    return fix.removesuffix("  # on the host")


def test_on_a_machine_with_nothing_it_explains_itself_briefly(on_nothing):
    ended = on_nothing("doctor", "--need", "gpus", "--need", "set-power-limits")
    assert ended.returncode == 1
    assert ended.stderr == "zeus-core: asked for, and missing: gpus, set-power-limits\n"
    assert len(ended.stdout.splitlines()) < 30
    assert "libnvidia-ml.so.1 is not on this machine" in ended.stdout
    assert "fix: export ZEUS_SIMULATED_GPUS=A100-SXM4-80GB:1\n" in ended.stdout


def test_without_gpus_every_other_check_is_there(on_nothing, tmp_path):
    checks = checks_of(on_nothing("doctor", "--json"))
    assert checks.keys() == NAMES
    states = {name: checks[name]["state"] for name in ("NVIDIA driver", "GPUs", "set power limits", "lock clocks")}
    assert set(states.values()) == {"missing"}
    assert checks["python"]["sentence"].startswith(f"Python {sys.version_info.major}.{sys.version_info.minor}.")


def test_where_all_is_well_nothing_needs_a_fix(on_driver):
    program, _ = on_driver(DeviceSpec(), DeviceSpec())
    checks = checks_of(program("doctor", "--json"))
    assert checks.keys() == NAMES | {"energy counter", "power limit", "restored"}
    for name in ("NVIDIA driver", "GPUs", "energy counter", "power limit"):
        assert (checks[name]["state"], checks[name]["fix"]) == ("ok", None)
    assert checks["NVIDIA driver"]["sentence"].startswith("NVIDIA driver 570.86.15")
    assert checks["GPUs"]["sentence"] == "2 visible: NVIDIA H200"


def test_persistence_mode_that_is_off_is_said_with_its_fix(on_driver):
    program, driver = on_driver(DeviceSpec(), DeviceSpec(persistence_mode=0))
    output = program("doctor").stdout
    assert "off: the driver starts anew with each program" in " ".join(output.split())
    assert f"fix: sudo nvidia-smi -i {driver[1].uuid} -pm 1" in output


def test_it_sets_nothing_to_find_out_what_may_be_set(on_driver):
    program, driver = on_driver(DeviceSpec())
    program("doctor")
    assert not [call for call in driver.calls() if "Set" in call.function or "Reset" in call.function]


def test_what_single_gpus_lack_is_said_with_their_indices(on_driver):
    program, _ = on_driver(DeviceSpec(), DeviceSpec(name="Tesla P100", has_energy_counter=False), DeviceSpec())
    checks = checks_of(program("doctor", "--json"))
    assert checks["energy counter"]["state"] == "limited"
    assert "2 of 3 have it, not GPU 1" in checks["energy counter"]["sentence"]
    assert checks["GPUs"]["sentence"] == "3 visible: NVIDIA H200, Tesla P100"


def test_a_variable_that_hides_all_gpus_is_named(on_driver):
    program, _ = on_driver(DeviceSpec(), CUDA_VISIBLE_DEVICES="")
    check = checks_of(program("doctor", "--json"), code=0)["GPUs"]
    assert (check["state"], check["fix"]) == ("missing", "unset CUDA_VISIBLE_DEVICES")


def test_a_gpu_that_does_not_answer_is_named(on_driver):
    program, driver = on_driver(DeviceSpec(), DeviceSpec())
    driver[1].lose()
    check = checks_of(program("doctor", "--json"))["GPUs"]
    assert (check["state"], here(check["fix"])) == ("limited", "sudo nvidia-smi --gpu-reset -i 1")
    assert "GPU 1 of the driver does not answer" in check["sentence"]


@pytest.mark.parametrize(("code", "fix"), [(9, "sudo modprobe nvidia"), (18, "sudo reboot")])
def test_a_driver_that_does_not_work_comes_with_its_command(monkeypatch, tmp_path, code, fix):
    driver = Driver(fault=f"it does not work (NVML error {code})")
    monkeypatch.setattr(machine, "CONTAINER_MARKS", (tmp_path / "none",))
    assert (check_driver(driver, tmp_path).state, check_driver(driver, tmp_path).fix) == ("missing", fix)
    monkeypatch.setattr(machine, "CONTAINER_MARKS", (tmp_path,))
    assert "sudo" not in check_driver(driver, tmp_path).fix, "a container has the kernel of its host"


def test_a_container_that_has_lost_its_devices_is_to_be_restarted(on_driver, tmp_path, monkeypatch):
    driver = Driver(fault=str(device_error(999, "opening NVML")))
    (tmp_path / "mark").touch()
    monkeypatch.setattr("zeus_core.cli.doctor.machine.CONTAINER_MARKS", (tmp_path / "mark",))
    check = check_driver(driver)
    assert check.fix == "docker restart CONTAINER"
    assert "`systemctl daemon-reload` on its host: restart the container" in check.sentence


JETSON = DeviceSpec(
    "Orin (nvgpu)", has_energy_counter=False, has_instant_power=False, has_power_limit=False, sm_clocks_mhz=()
)


def test_a_jetson_is_promised_no_energy(on_driver):
    program, driver = on_driver(JETSON)
    driver.fail("nvmlDeviceGetPowerUsage", 3)
    checks = checks_of(program("doctor", "--json"))
    assert checks["energy counter"]["sentence"].endswith("no energy is measured")
    assert checks["GPU 0"]["sentence"].startswith("power is not reported through NVML on Jetson")
    assert "integrated" not in str(checks)


def test_a_board_without_limits_is_shown_the_way_by_clocks(on_driver):
    program, _ = on_driver(DeviceSpec("NVIDIA GB10", has_power_limit=False))
    check = checks_of(program("doctor", "--json"))["power limit"]
    expected = 'no visible GPU reports one, as on GB10 and many laptops: "auto" and `run --save` search clocks there'
    assert check["sentence"] == expected


def test_a_laptop_that_shows_a_limit_is_not_promised_that_it_takes_one(make_driver):
    make_driver(DeviceSpec(name="NVIDIA GeForce RTX 4090 Laptop GPU"))
    check = check_limit_rights(Rights(True, "this process is root"), discover_gpus({}))
    assert (check.state, check.fix) == ("limited", None)
    assert "many laptops show a limit and take none" in check.sentence


@pytest.fixture
def pci_devices(tmp_path):
    """The PCI bus of a machine with a GPU of NVIDIA."""
    folder = tmp_path / "pci" / "0000:01:00.0"
    folder.mkdir(parents=True)
    (folder / "vendor").write_text("0x10de\n")
    (folder / "class").write_text("0x030200\n")
    return folder.parent


INSTALL = {"sudo ubuntu-drivers install", "sudo apt-get install -y nvidia-driver", None}  # by the distribution at hand


@pytest.mark.parametrize(
    ("fault", "contained", "fixes"),
    [
        ("no library (NVML error 12)", False, INSTALL),
        ("no library (NVML error 12)", True, {"docker run --gpus all IMAGE"}),
        ("it is not loaded (NVML error 9)", True, {"docker run --gpus all IMAGE"}),
        # Installing the driver would not help.
        ("nvidia-ml-py is not installed", False, {None}),
        ("it does not answer within 10 s", False, {None}),
        ("it does not answer within 10 s", True, {None}),
        ("a GPU has fallen off the bus (NVML error 15)", False, {None}),
    ],
)
def test_a_machine_with_an_nvidia_gpu_is_told_what_helps(pci_devices, tmp_path, monkeypatch, fault, contained, fixes):
    monkeypatch.setattr(machine, "CONTAINER_MARKS", (tmp_path,) if contained else ())
    check = check_driver(Driver(fault=fault), pci_devices)
    assert check.sentence == fault
    assert check.fix in fixes


def test_in_a_container_commands_of_the_host_say_so(make_driver, monkeypatch, tmp_path, capsys, loggers_of_others):
    driver = make_driver(DeviceSpec(power_limit_watts=300))
    monkeypatch.delenv("ZEUS_SIMULATED_GPUS", raising=False)
    for marks, remark in (((), ""), ((tmp_path,), "  # on the host")):
        monkeypatch.setattr(machine, "CONTAINER_MARKS", marks)
        assert main(["doctor", "--json"]) == 0
        checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
        assert checks["power limit"]["fix"] == f"sudo nvidia-smi -i {driver[0].uuid} -pl 700{remark}"


def test_simulated_gpus_are_said_to_be_no_hardware(on_simulated):
    checks = checks_of(on_simulated("doctor", "--json"))
    assert checks["GPUs"]["state"] == "limited"
    assert "2 visible: A40 (simulated)" in checks["GPUs"]["sentence"]
    assert checks["set power limits"]["state"] == "ok"


def test_where_gpus_are_simulated_it_does_not_propose_to_simulate_them(on_simulated):
    checks = checks_of(on_simulated("doctor", "--json"))
    assert [name for name, check in checks.items() if "ZEUS_SIMULATED_GPUS" in (check["fix"] or "")] == []
    assert "simulated GPUs need none" in checks["NVIDIA driver"]["sentence"]


def test_where_there_are_real_gpus_it_says_how_to_use_them_again(on_driver):
    program, _ = on_driver(DeviceSpec(), ZEUS_SIMULATED_GPUS="A40:1")
    checks = checks_of(program("doctor", "--json"))
    assert checks["GPUs"]["fix"] == "unset ZEUS_SIMULATED_GPUS"
    assert checks["NVIDIA driver"]["state"] == "ok"


def test_a_limit_below_the_default_is_named(on_driver):
    program, driver = on_driver(DeviceSpec(), DeviceSpec(power_limit_watts=300), DeviceSpec(enforced_cap_watts=450))
    check = checks_of(program("doctor", "--json"))["power limit"]
    assert check["state"] == "limited"
    assert "GPU 1: 300 W of 700 W, as requested" in check["sentence"]
    assert "GPU 2: 450 W of 700 W, held down by firmware or another limiter" in check["sentence"]
    assert "GPU 0" not in check["sentence"]
    assert here(check["fix"]) == f"sudo nvidia-smi -i {driver[1].uuid} -pl 700"


def test_a_limit_that_another_limiter_holds_down_has_no_fix(on_driver):
    program, _ = on_driver(DeviceSpec(enforced_cap_watts=450))
    assert checks_of(program("doctor", "--json"))["power limit"]["fix"] is None


CLOCKS = ', as on GB10 and many laptops: "auto" and `run --save` search clocks there'


def test_gpus_without_power_limits_are_not_said_to_be_limited(make_driver):
    driver = make_driver(DeviceSpec(has_power_limit=False))
    check = check_limits([NvmlGpu(NvmlSession(), driver[0].uuid)])
    assert (check.state, check.sentence) == ("missing", "no visible GPU reports one" + CLOCKS)


def test_a_simulation_that_cannot_be_read_is_reported_too(on_simulated):
    on_simulated.environment["ZEUS_SIMULATED_GPUS"] = "Z9000"
    check = checks_of(on_simulated("doctor", "--json"), code=1)["GPUs"]
    assert check["state"] == "missing"
    assert "there is no GPU model 'Z9000' here" in check["sentence"]
    assert check["fix"] == "unset ZEUS_SIMULATED_GPUS"


@pytest.mark.parametrize(
    ("effective_uid", "status", "uid_map", "is_contained", "may_control", "fix"),
    [
        (0, EVERYTHING, OF_THE_MACHINE, False, True, None),
        (0, "", "", False, True, None),
        (1000, EVERYTHING, OF_THE_MACHINE, False, True, None),
        (0, ALL_BUT_SYS_ADMIN, OF_THE_MACHINE, True, False, "docker run --gpus all --cap-add=SYS_ADMIN"),
        (0, EVERYTHING, OF_A_NAMESPACE, False, False, "sudo docker run --userns=host --gpus all --cap-add=SYS_ADMIN"),
        (1000, NOTHING, OF_THE_MACHINE, True, False, "docker run --user 0 --gpus all --cap-add=SYS_ADMIN"),
        (1000, NOTHING, OF_THE_MACHINE, False, False, f"sudo {PYTHON} train.py"),
        (1000, "", "", False, False, f"sudo {PYTHON} train.py"),
    ],
)
def test_the_right_to_control_follows_from_capability_and_namespace(
    effective_uid, status, uid_map, is_contained, may_control, fix
):
    found = rights_of(effective_uid, status, uid_map, is_contained)
    assert found.may_control is may_control
    assert found.fix is None if fix is None else fix in found.fix


def test_the_command_carries_nothing_to_root_but_the_choice_of_gpus():
    environment = {"CUDA_VISIBLE_DEVICES": "2,3", "PYTHONPATH": "/of/someone", "HOME": "/home/someone"}
    fix = rights_of(1000, NOTHING, OF_THE_MACHINE, False, environment).fix
    assert fix == f"sudo env CUDA_VISIBLE_DEVICES=2,3 {PYTHON} train.py"


def test_rights_are_of_no_use_where_the_gpu_has_nothing_to_set(make_driver):
    driver = make_driver(DeviceSpec(), DeviceSpec(has_power_limit=False, sm_clocks_mhz=()))
    gpus = [NvmlGpu(NvmlSession(), device.uuid) for device in driver]
    allowed, denied = Rights(True, "root"), Rights(False, "not root", "sudo")
    for check in (check_limit_rights, check_clock_rights):
        assert check(allowed, gpus[:1]).state == "ok"
        assert check(allowed, gpus).state == "limited"
        assert check(allowed, gpus[1:]).state == "missing"
        assert (check(denied, gpus).state, check(denied, gpus).fix) == ("missing", "sudo")


def test_rapl_that_can_be_read_is_well(tmp_path):
    rapl = FakeRapl(tmp_path)
    rapl.add_zone("dram", within=rapl.add_package(0))
    check = check_rapl(rapl.root, rapl.read_text)
    assert (check.state, check.sentence) == ("ok", "1 CPU package(s) can be read, 1 of them with DRAM")


def test_a_machine_too_busy_to_look_twice_in_time_looks_twice():
    assert still_counters({"moves": itertools.count().__next__, "stands": lambda: 7}, seconds=0.0) == ["stands"]


def test_counters_that_cannot_be_used_are_remarked_on(on_driver):
    program, driver = on_driver(
        DeviceSpec(),
        DeviceSpec(name="NVIDIA GH200 480GB", limit_scopes="gpu and module", rest_of_module_watts=100.0),
        DeviceSpec(),
        DeviceSpec(),
    )
    driver[3].stick_counter()
    checks = checks_of(program("doctor", "--json"))
    assert "energy counter stands still" in checks["GPU 3"]["sentence"]
    assert "covers the whole module" in checks["GPU 1"]["sentence"]
    assert "GPU 2" not in checks


def test_rapl_that_may_not_be_read_comes_with_the_command(tmp_path):
    rapl = FakeRapl(tmp_path)
    package = rapl.add_package(0)
    rapl.make_unreadable(package)
    check = check_rapl(rapl.root, rapl.read_text)
    folder = shlex.quote(str(rapl.root))
    assert (check.state, check.fix) == ("missing", f"sudo chmod a+r {folder}/intel-rapl:*/energy_uj")
    rapl.add_package(1)
    assert check_rapl(rapl.root, rapl.read_text).state == "limited"


def test_rapl_that_is_not_there_comes_with_a_command(tmp_path, monkeypatch):
    assert why_no_zones(tmp_path, "x86_64") == "try `sudo modprobe intel_rapl_msr` (for AMD too)"
    monkeypatch.setattr(rapl_module, "why_no_zones", lambda: why_no_zones(tmp_path, "x86_64"))
    assert check_rapl(tmp_path / "powercap").fix == "sudo modprobe intel_rapl_msr"


@pytest.mark.parametrize("place", ["proc/cpuinfo", ".dockerenv", "run/secrets/kubernetes.io"])
def test_no_module_is_loaded_where_it_cannot_help(tmp_path, place):
    (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / place).write_text("flags\t\t: fpu hypervisor lahf_lm\n")
    assert why_no_zones(tmp_path, "x86_64") == "virtual machines and containers hide them"
    assert why_no_zones(tmp_path, "aarch64") == "processors of aarch64 have none"


def test_what_is_asked_for_decides_the_exit_code(in_process):
    assert in_process("doctor", "--need", "gpus", "--need", "set-power-limits").returncode == 0
    ended = in_process("doctor", "--need", "nvidia-driver")
    assert (ended.returncode, ended.stderr.splitlines()[-1]) == (1, "zeus-core: asked for, and missing: nvidia-driver")
    assert in_process("doctor", "--need", "frob").returncode == 2


def test_wrong_arguments_are_an_error_even_so(on_nothing):
    assert on_nothing("doctor", "--cure").returncode == 2


@pytest.fixture
def on_amd(tmp_path):
    """On a tree of AMD boards: one of two dies, and one whose counter shows 0."""
    tree = FakeSysfs(tmp_path)
    tree.add("1.3", model="0x740c", name="AMD Instinct MI250X")
    tree.add_second_die()
    tree.add("1.3", model="0x744c", name="AMD Radeon RX 7900 XTX", energy="zero")
    return Program({"ZEUS_SYSFS": str(tree.root)}), tree


def test_boards_of_amd_need_no_driver_of_nvidia(on_amd):
    program, tree = on_amd
    with tree.run(300.0):
        checks = checks_of(program("doctor", "--json"))
    assert (checks["GPU driver"]["state"], checks["GPU driver"]["fix"]) == ("ok", None)
    assert checks["GPU driver"]["sentence"].startswith("amdgpu of Linux ")
    assert "AMD Instinct MI250X, 2 dies (simulated)" in checks["GPUs"]["sentence"]
    assert "no number comes from hardware" in checks["GPUs"]["sentence"]
    assert "stands still at 0 J" in checks["GPU 2"]["sentence"]
    assert "power1_cap" in checks["set power limits"]["sentence"]
    assert checks["lock clocks"]["state"] == "missing"


def test_boards_of_amd_are_listed_and_shown(on_amd):
    program, tree = on_amd
    with tree.run(300.0):
        listing = json.loads(program("top", "--json").stdout)
        power = program("power", "--once").stdout
    assert [(row["index"], row["has_energy_counter"]) for row in listing["gpus"]] == [(0, True), (2, False)]
    assert "600" in power


def test_under_wsl2_the_doctor_says_who_sets_limits(tmp_path, make_driver, monkeypatch):
    make_driver(DeviceSpec())
    monkeypatch.setenv("ZEUS_DAEMON_SOCKET", "/nowhere")
    (tmp_path / "version").write_text("Linux version 5.15.153.1-microsoft-standard-WSL2 (root@1) (gcc 11.2.0)\n")
    found = read_rights({}, str(tmp_path))
    check = check_limit_rights(found, discover_gpus({}))
    assert not found.may_control
    assert (check.state, check.fix) == ("missing", "nvidia-smi.exe -i 0 -pl WATTS  # as an administrator of Windows")
    assert "under WSL2 the driver of Windows sets limits and clocks" in check.sentence


@pytest.mark.parametrize(
    ("user", "is_contained", "fix"),
    [
        (0, True, "docker run -v {0}:{0} IMAGE"),
        (1000, True, "docker run --user 0 -v {0}:{0} IMAGE"),
        (1000, False, "sudo python train.py"),
    ],
)
def test_the_files_of_limits_are_mounted_for_root(on_amd, monkeypatch, user, is_contained, fix):
    (gpu,) = [AmdGpu(card) for card in find_cards(str(on_amd[1].root))[:1]]
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(rights, "is_in_container", lambda: is_contained)
    monkeypatch.setenv("ZEUS_DAEMON_SOCKET", "/nowhere")
    check = check_limit_rights(Rights(False, "no root", "sudo python train.py"), [gpu])
    assert check.fix == fix.format(gpu.limit_path)


def test_rights_are_those_to_write_the_files_of_limits(on_amd, monkeypatch):
    gpus = [AmdGpu(card) for card in find_cards(str(on_amd[1].root))[:1]]
    assert check_limit_rights(Rights(False, "no CAP_SYS_ADMIN"), gpus).state == "ok"
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setenv("ZEUS_DAEMON_SOCKET", "/nowhere")
    check = check_limit_rights(Rights(True, "root"), gpus)
    assert check.state == "missing"
    assert "may not write" in check.sentence
