"""`zeus-core doctor --measure`: its parts on a simulated GPU and on the driver in C, and what it leaves behind."""

import json
import math
import os
import shutil
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cli.conftest import Program
from tests.nvml_driver import DeviceSpec
from zeus_core.cli import main
from zeus_core.device import SimulatedGpu, discover_gpus, find_preset
from zeus_core.errors import DriverFaultError
from zeus_core.selfcheck._load import SimulatedLoad
from zeus_core.selfcheck._setting_changes import _settled_after
from zeus_core.selfcheck.self_check import FORMAT, SelfCheck, json_fields, markdown_heading, markdown_section

ROOT = Path(__file__).parents[2]
PARTS = {
    "Idle power",
    "Energy counter",
    "Calls of the driver",
    "A window beside its bare calls",
    "Truth of the stated uncertainties",
    "Counter and integrated power",
    "Marks beside CUDA events",
    "Hooks in a training step",
    "Power at rest and at work",
}
WITH_CHANGES = PARTS | {"Power limits", "SM clocks", "Saving of a search", "Settings at the end"}
NEEDED = {  # torch, numpy and nvidia-ml-py, and what torch itself cannot do without
    *("torch", "torchgen", "functorch", "numpy", "numpy.libs", "pynvml.py", "typing_extensions.py"),
    *("sympy", "mpmath", "networkx", "jinja2", "markupsafe", "filelock", "fsspec"),
}


def findings_of(checks, title):
    (check,) = [check for check in checks if check["title"] == title]
    return {finding["quantity"]: finding for finding in check["findings"]}


def setters(driver):
    return {call.function for call in driver.calls() if "Set" in call.function or "Reset" in call.function}


def test_every_part_measures_and_the_settings_are_restored(tmp_path):
    gpu = SimulatedGpu(find_preset("A100"), power_limit_watts=350)
    check = SelfCheck(gpu, SimulatedLoad, allow_changes=True, is_quick=True)
    results = {result.title: result for result in check.run()}
    assert results.keys() == WITH_CHANGES
    missing = {title: result.not_measured_because for title, result in results.items() if result.not_measured_because}
    assert missing == {"Marks beside CUDA events": "the load has no CUDA device"}
    FORMAT.write(tmp_path / "selfcheck.json", json_fields(check.machine, check.results))
    checks = FORMAT.read(tmp_path / "selfcheck.json")["checks"]
    blocking_watts = gpu.preset.physics.blocking_power_watts
    idle = findings_of(checks, "Idle power")["idle, before this process has used it"]
    assert idle["value"] == pytest.approx(blocking_watts, rel=0.1)
    assert findings_of(checks, "Settings at the end")["power limit at the end"]["holds"] is True
    assert gpu.read_power_limit_watts() == 350
    assert gpu._locked_clock_mhz == gpu.preset.highest_clock_mhz
    text = "\n".join([markdown_heading(check.machine), *map(markdown_section, check.results)])
    assert "# Self-check of A100-SXM4-80GB (simulated), simulated" in text
    assert all(f"\n## {title}\n" in text for title in WITH_CHANGES)


def test_a_fault_costs_one_part_and_no_other():
    class Deaf(SimulatedGpu):
        def read_energy_counter_joules(self):
            raise DriverFaultError("reading the energy counter of GPU 0: unknown error")

    def no_load(gpu):
        raise RuntimeError("out of memory")

    check = SelfCheck(Deaf(find_preset("A100")), no_load, is_quick=True)
    results = {result.title: result for result in check.run()}
    assert results.keys() == PARTS
    assert results["Hooks in a training step"].not_measured_because == "out of memory"
    counter = {finding.quantity: finding for finding in results["Calls of the driver"].findings}
    assert counter["energy counter, GPU idle"].value is None
    assert counter["power, GPU idle"].value > 0
    assert "unknown error" in counter["energy counter, GPU idle"].note


@pytest.mark.parametrize(
    ("trace", "expected"),
    [
        ([(0.0, 400.0), (0.1, 400.0), (0.2, 300.0), (0.3, 261.0), (0.4, 260.0), (0.5, 260.0)], 0.3),
        ([(0.0, 400.0), (0.1, 399.0), (0.2, 401.0), (0.3, 400.0)], None),  # it hardly changes
        ([(0.0, 200.0), (0.1, 400.0), (0.2, 400.0), (0.3, 400.0)], 0.1),
    ],
)
def test_a_change_takes_effect_when_readings_stay_near_the_last_ones(trace, expected):
    assert _settled_after(trace) == expected


@pytest.mark.parametrize("options", [[], ["settings"], ["--json"]])
def test_without_a_gpu_it_says_so(options):
    ended = Program({})("doctor", "--measure", *options)
    assert ended.returncode == 1
    assert "ZEUS_SIMULATED_GPUS" in ended.stderr
    assert ended.stdout == ""


def test_another_word_is_refused(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["doctor", "--measure", "everything"])
    assert "invalid choice: 'everything'" in capsys.readouterr().err


@pytest.mark.long
def test_from_an_unpacked_tree_it_needs_nothing_else_and_changes_nothing(make_driver, tmp_path):
    """In an environment of torch, numpy and the driver's binding alone."""
    packages = Path(find_spec("torch").origin).parents[1]
    environment = tmp_path / "packages"
    environment.mkdir()
    for name in NEEDED:
        if (packages / name).exists():
            (environment / name).symlink_to(packages / name)
    tree = tmp_path / "tree"
    shutil.copytree(ROOT / "zeus_core", tree / "zeus_core", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tree)
    driver = make_driver(DeviceSpec())
    program = Program(driver.environment)
    driver.clear_calls()
    ended = subprocess.run(
        [sys.executable, "-I", "-S", "-c", START, str(tree), str(environment), "quick", "--json"],
        env={**os.environ, **program.environment},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ended.returncode == 0, ended.stderr
    report = FORMAT.from_json(json.loads(ended.stdout))
    assert report["machine"]["device"] == "NVIDIA H200"
    assert "on the CPU" in report["machine"]["load"]
    assert {check["title"] for check in report["checks"]} == PARTS
    period = findings_of(report["checks"], "Energy counter")["period of the counter, median"]
    assert period["value"] == pytest.approx(100, rel=0.3)
    assert setters(driver) == set()
    json.dumps(report, allow_nan=False)
    assert math.isfinite(period["value"])


START = """
import sys
sys.path[:0] = sys.argv[1:3]
from zeus_core.cli import main
sys.exit(main(["doctor", "--measure", *sys.argv[3:]]))
"""


class Resting:
    """A load that leaves the GPU alone."""

    name, steps_in_queue = "none", 1

    def __init__(self, gpu):
        pass

    def step(self):
        time.sleep(0.005)

    def synchronize(self):
        pass

    def block(self, seconds):
        time.sleep(seconds)


@pytest.mark.long
def test_with_permission_the_drivers_limit_and_clock_change_and_are_restored(make_driver):
    driver = make_driver(DeviceSpec(power_limit_watts=600.0))
    check = SelfCheck(discover_gpus({})[0], Resting, allow_changes=True, is_quick=True)
    results = {result.title: result for result in check.run()}
    assert {"nvmlDeviceSetPowerManagementLimit", "nvmlDeviceSetGpuLockedClocks"} <= setters(driver)
    assert driver.calls("nvmlDeviceResetGpuLockedClocks")
    assert [finding.value for finding in results["Settings at the end"].findings] == [600.0]
    watts = {finding.quantity: finding.value for finding in results["Power at rest and at work"].findings}
    assert watts["waiting, as for other ranks"] == pytest.approx(75, rel=0.1)
