"""Modules that importing the core loads, tried in fresh interpreters."""

import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import zeus_core

WINGS = (
    "zeus_core.activities",
    "zeus_core.batches",
    "zeus_core.carbon",
    "zeus_core.daemon",
    "zeus_core.jobs",
    "zeus_core.mixed",
    "zeus_core.pipeline",
    "zeus_core.runs",
    "zeus_core.selfcheck",
    "zeus_huggingface.batches",
    "zeus_lightning.batches",
)

ABSENT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "transformers", "accelerate", "lightning", "deepspeed", "pynvml"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""

WITH_TORCH = (
    "zeus_core.pytorch",
    "zeus_core.batches.pytorch",
    "zeus_core.pipeline.taps",
    "zeus_core.selfcheck.check_load",
)
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(zeus_core.__path__, "zeus_core.")
    if not module.name.startswith(WITH_TORCH) and not module.name.endswith("__main__")
)


def run(program: str, **environment: str) -> str:
    """Run a program in an interpreter of its own, and return its output."""
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(Path(zeus_core.__file__).parents[1]), **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize(
    "statement",
    [
        "import zeus_core",
        "from zeus_core.monitor import ZeusMonitor",
        "from zeus_core.optimizer.power_limit import GlobalPowerLimitOptimizer",
    ],
)
def test_importing_the_core_loads_neither_a_framework_nor_the_driver(statement):
    loaded = run(f"import sys\n{statement}\nprint(*sys.modules, sep='\\n')").splitlines()
    assert "zeus_core" in loaded
    assert {"torch", "transformers", "accelerate", "lightning", "deepspeed", "pynvml"}.isdisjoint(loaded)


@pytest.mark.parametrize(
    "statement",
    [
        "from zeus_core.monitor import ZeusMonitor",
        "from zeus_core.optimizer.power_limit import GlobalPowerLimitOptimizer",
    ],
)
def test_importing_the_core_loads_nothing_that_most_programs_do_without(statement):
    """Each takes 1 to 80 ms: OpenSSL, fractions, other processes, numpy."""
    loaded = run(f"import sys\n{statement}\nprint(*sys.modules, sep='\\n')").splitlines()
    assert "zeus_core.device" in loaded
    unneeded = {"hashlib", "statistics", "decimal", "csv", "numpy", "socket", "subprocess"}
    assert unneeded.isdisjoint(loaded)


def test_importing_a_search_loads_nothing_that_only_some_searches_need():
    """Limits beside clocks, signals, the safe clock, and the words for the result."""
    program = "import sys, zeus_core.optimizer.power_limit; print(*sys.modules)"
    loaded = {module.rpartition(".")[2] for module in run(program).split() if module.startswith("zeus_core.")}
    assert "_search_course" in loaded
    assert {"electricity", "_rival_searches", "safe_clock", "search_result"}.isdisjoint(loaded)


def test_a_plain_run_of_a_trainer_loads_no_module_of_a_wing(tmp_path):
    """A stranger who comes for limits and measurement meets no pipeline, no forecast, no batch and no socket."""
    pytest.importorskip("transformers")
    program = f"""
import sys
import torch
from transformers import Trainer, TrainingArguments
from zeus_huggingface import ZeusTrainerCallback

class Model(torch.nn.Linear):
    def forward(self, x, y):
        return {{"loss": ((super().forward(x) - y) ** 2).mean()}}

rows = [{{"x": [1.0], "y": [2.0]}}] * 40
arguments = TrainingArguments({str(tmp_path)!r}, report_to=[], save_strategy="no", disable_tqdm=True, use_cpu=True)
Trainer(Model(1, 1), arguments, train_dataset=rows, callbacks=[ZeusTrainerCallback(optimizer="auto")]).train()
print("LOADED", *sys.modules)
"""
    loaded = run(program, ZEUS_SIMULATED_GPUS="A40:1").partition("LOADED")[2].split()
    assert "zeus_core.optimizer.global_setting.setting_search" in loaded
    assert [module for module in loaded if module.startswith(WINGS)] == []


def test_importing_the_package_loads_nothing_but_itself():
    loaded = run("import sys; before = set(sys.modules); import zeus_core; print(*set(sys.modules) - before)").split()
    assert {name for name in loaded if name.startswith("zeus")} == {"zeus_core", "zeus_core._lazy_names"}


@pytest.mark.parametrize("module", ["zeus_core.monitor", "zeus_core.cli"])
def test_importing_what_measures_loads_nothing_to_start_processes(module):
    program = f"import sys; before = set(sys.modules); import {module}; print(*set(sys.modules) - before)"
    assert {"subprocess", "pickle"}.isdisjoint(run(program).split())


def test_every_module_can_be_imported_where_frameworks_and_driver_are_absent():
    imports = "\n".join(f"import {module}" for module in MODULES)
    assert run(f"{ABSENT}\n{imports}\nprint('imported')") == "imported\n"


def test_importing_prints_nothing_and_leaves_no_file(tmp_path):
    imports = "\n".join(f"import {module}" for module in MODULES)
    assert run(f"import os; os.chdir({str(tmp_path)!r})\n{imports}") == ""
    assert list(tmp_path.iterdir()) == []


def test_simulated_gpus_are_measured_where_frameworks_and_driver_are_absent():
    program = """
from zeus_core.monitor import ZeusMonitor
monitor = ZeusMonitor()
with monitor.window("import") as window:
    pass
print(len(window.measurement.gpu_energy), sorted(set(sys.modules) & {"torch", "pynvml"}))
"""
    assert run(ABSENT + program, ZEUS_SIMULATED_GPUS="A40:2") == "2 []\n"
