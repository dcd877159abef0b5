"""The pages of the documentation: each block of code runs, here or in the test of its framework."""

import doctest
import importlib
import os
import pkgutil
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import zeus_core
from tests.pipeline.planner.instances import smooth_profile
from tests.pipeline.taps.test_torchtitan import ModelSpecStandIn
from tests.support.kept_runs import kept_run
from tests.support.pages import ROOT, blocks
from tests.support.ranks import torchrun_environments
from tests.support.recorded import write_recorded
from zeus_core.device import SimulatedGpu, Work, find_preset
from zeus_core.device.gpu import SIMULATED_GPUS_VARIABLE
from zeus_core.jobs import RecurringJob, Target
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer import GlobalPowerLimitOptimizer
from zeus_core.optimizer.global_setting.phases import Phase
from zeus_core.optimizer.power_limit import Time
from zeus_core.pipeline import PipelineFrequencySettings
from zeus_core.testing import VirtualTime
from zeus_core.training import TrainingEnergy
from zeus_core.training.record.run_file import read_run

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
HERE = {
    "clock.md",
    "electricity.md",
    "measurement.md",
    "mixed-gpus.md",
    "power-limit.md",
    "search.md",
    "simulation.md",
    "pipeline.md",
}
ELSEWHERE = {  # these bring a model of their framework, or compare the page with an example that is run
    "accelerate.md": "accelerate/test_example.py",
    "deepspeed.md": "deepspeed/test_docs.py",
    "huggingface.md": "huggingface/test_docs.py",
    "levelling.md": "mixed/levelling/test_work_end.py",
    "lightning.md": "lightning/test_docs.py",
    "micro-batch.md": "batches/test_micro_batches.py",
    "pytorch.md": "plain_torch/test_examples.py",
    "tracing.md": "tracing/test_page.py",
    "uneven-batches.md": "batches/test_uneven_batches_page.py",
    "recurring-jobs.md": "huggingface/test_docs.py",
}


@pytest.fixture(autouse=True)
def _simulated(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(SIMULATED_GPUS_VARIABLE, "A100-SXM4-80GB:2")


@pytest.fixture
def _recorded(tmp_path):
    """Write the files that the commands of the replay name."""
    write_recorded(tmp_path / "summary_train.csv", tmp_path / "summary_power_v100.csv", "cifar100", 0.6)


def nothing(*_):
    """Stand for a step of training, an evaluation or an epoch."""


def run(block, names):
    exec(compile(block, "<page>", "exec"), names)
    return names


def test_every_page_with_code_is_run():
    with_code = {page.name for page in PAGES if "```python" in page.read_text(encoding="utf-8")}
    assert with_code == HERE | ELSEWHERE.keys()
    for page, test in ELSEWHERE.items():
        assert f'"{page}"' in (ROOT / "tests" / test).read_text(encoding="utf-8")


def test_every_variable_is_in_one_list():
    _, listed = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8").split("## All variables\n")
    found = set()
    for path in [*(ROOT / "zeus_core").rglob("*.py"), *(ROOT / "integrations").rglob("*.py")]:
        found |= set(re.findall(r'"(ZEUS(?:_[A-Z]+)*)"', path.read_text(encoding="utf-8")))
    assert set(re.findall(r"`(ZEUS(?:_[A-Z]+)*)[=`]", listed)) == found


@pytest.fixture
def _one_rank(monkeypatch):
    """Set the environment of a job of one process, as torchrun does."""
    import torch.distributed

    for name, value in next(torchrun_environments(1)).items():
        monkeypatch.setenv(name, value)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("_one_rank")
def test_the_page_on_measuring(capsys):
    import torch.distributed

    windows, power, ranks = blocks("measurement.md")
    run(power, {"train": nothing})
    assert capsys.readouterr().out.count("\n") >= 2
    names = run(windows, {"train_one_step": nothing})
    assert names["measurement"].total_energy > 0
    names["evaluate"]()
    torch.distributed.init_process_group("gloo")
    capsys.readouterr()
    run(ranks, names)
    assert float(capsys.readouterr().out.split()[0]) == pytest.approx(names["measurement"].total_energy)


def searched():
    """Return an optimizer whose search is over."""
    time_source = VirtualTime()
    gpu = SimulatedGpu(find_preset("A100"), time_source=time_source)
    monitor = ZeusMonitor(gpus=[gpu], time_source=time_source)
    optimizer = GlobalPowerLimitOptimizer(monitor, wait_steps=0, warmup_steps=0, profile_steps=5, pl_step=100)
    with optimizer:
        for _ in range(5 * 5):
            optimizer.on_step_begin()
            gpu.execute(Work(0.9, 484.9, 0.938, 0.744))
            optimizer.on_step_end()
    return optimizer


def test_the_page_on_electricity(capsys):
    training, account, aware = blocks("electricity.md")
    run(account, {})
    assert capsys.readouterr().out.splitlines() == account.rpartition("# ")[2].strip().split(", ")
    run(training, {})
    logged, shown = capsys.readouterr().out.splitlines()
    assert "'co2_eq_g': " in logged
    assert "'cost': " in logged
    assert "PUE 1.2, at 380 g/kWh (Germany, mean of 2024; average)" in shown
    names = run(aware, {"batches": range(3), "train": nothing})
    assert names["optimizer"].phase is Phase.REST


def test_the_page_on_searches():
    (loop,) = blocks("search.md")
    names = run(loop, {})
    assert 100 < names["search"].choice < 300


@pytest.mark.usefixtures("_one_rank")
def test_the_page_on_power_limits():
    import torch

    begin, other, several, work = blocks("power-limit.md")
    names = {"torch": torch, "ZeusMonitor": ZeusMonitor, "GlobalPowerLimitOptimizer": GlobalPowerLimitOptimizer}
    run(other, run(begin, names))["optimizer"].close()
    run(several, names)["optimizer"].close()
    run(work, {"optimizer": searched()})


def test_the_page_on_clocks():
    loop, both, each, profiles = blocks("clock.md")
    names = run(loop, {})
    names["optimizer"].close()
    run(both, names)["optimizer"].close()
    run(each, names)["optimizer"].close()
    run(profiles, names)["optimizer"].close()


def test_the_page_on_simulation(gpu, monitor):
    import torch

    model, testing = blocks("simulation.md")
    module = torch.nn.Linear(2, 1)
    run(model, {"model": module, "monitor": monitor})
    module(torch.ones(1, 2))
    names = run(testing, {"ZeusMonitor": ZeusMonitor})
    assert names["gpu"].exact_energy_joules() > 3600 * 50


def test_the_page_on_plans(tmp_path, monkeypatch):
    smooth_profile(8, clocks=4).to_csv(tmp_path / "profile.csv")
    # The others: tests/plain_torch/test_pipeline_examples.py
    block, of_torch, of_megatron, of_torchtitan, *of_own_loop = blocks("pipeline.md")
    assert ("pipelining.attach" in of_torch, len(of_own_loop)) == (True, 2)
    run(block, {})
    assert (tmp_path / "plan.json").exists()
    attached = []
    monkeypatch.setattr("zeus_core.pipeline.taps.megatron.attach", attached.append)
    run(of_megatron, {"pretrain": nothing, "PipelineFrequencySettings": PipelineFrequencySettings})
    assert [settings.slowdown_factor for settings in attached] == [1.02]
    config = SimpleNamespace(model_spec=ModelSpecStandIn("llama3", "small", None, nothing, nothing, None, None))
    run(of_torchtitan, {"config": config, "PipelineFrequencySettings": PipelineFrequencySettings})
    assert config.model_spec.pipelining_fn is not nothing


def write_device_tables(folder):
    """Measured steps of two GPU models."""
    for name, highest, per_sample in (("v100", 250, 0.004), ("a40", 300, 0.002)):
        rows = [
            f"{batch},{limit},{0.01 + batch * per_sample * (highest / limit) ** 0.5},{0.95 * limit}"
            for batch in (16, 64, 256)
            for limit in (highest, highest - 100)
        ]
        (folder / f"{name}.csv").write_text("\n".join(["batch_size,power_limit,seconds,watts", *rows]))


def test_the_page_on_mixed_gpus(tmp_path, capsys):
    write_device_tables(tmp_path)
    (block,) = blocks("mixed-gpus.md")
    names = run(block, {})
    assert names["plan"].batches[0] < names["plan"].batches[2]
    assert sum(names["plan"].batches) == 512
    assert (tmp_path / "plan.json").exists()


def test_the_readme(tmp_path, capsys):
    import lightning.pytorch
    from transformers import Trainer, TrainingArguments

    from tests.accelerate.loop import Loop
    from tests.huggingface.trainers import examples, tiny_model
    from zeus_huggingface import ZeusTrainerCallback
    from zeus_huggingface.accelerate import ZeusAccelerate
    from zeus_lightning import ZeusCallback

    def make_trainer(_, callbacks):
        arguments = {"report_to": "none", "use_cpu": True, "save_strategy": "no", "disable_tqdm": True}
        settings = TrainingArguments(str(tmp_path), max_steps=2, dataloader_pin_memory=False, **arguments)
        return Trainer(tiny_model(), settings, train_dataset=examples(8), callbacks=callbacks)

    def make_lightning_trainer(_, callbacks):
        return lightning.pytorch.Trainer(callbacks=callbacks, logger=False, accelerator="cpu")

    page = (ROOT / "README.md").read_text(encoding="utf-8")
    trainer, on_lightning, on_accelerate, loop, deepspeed, command = re.findall(r"^\| [^|`]+ \| `([^`]+)`", page, re.M)
    callback = ZeusTrainerCallback(optimizer="auto", quiet=True)
    run(trainer, {"Trainer": make_trainer, "ZeusTrainerCallback": ZeusTrainerCallback})["trainer"].train()
    assert "+- zeus-core ---" in capsys.readouterr().err
    assert isinstance(callback.optimizer, GlobalPowerLimitOptimizer)
    run(on_lightning, {"Trainer": make_lightning_trainer, "ZeusCallback": ZeusCallback})
    run(f"{on_accelerate} pass", {"accelerator": Loop(tmp_path, None).accelerator, "ZeusAccelerate": ZeusAccelerate})
    names = run(f"{loop}\n    with energy.step(): pass", {"TrainingEnergy": TrainingEnergy})
    assert isinstance(names["energy"].optimizer, GlobalPowerLimitOptimizer)
    assert str(names["energy"].optimizer.optimum_selector) == "EnergyWithin(factor=1.1)"
    run(deepspeed, names := {})
    names["zeus_deepspeed"].auto.disable()
    assert command == "zeus-core run --save 10% -- python train.py"


@pytest.mark.parametrize(
    "name",
    [
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        *(str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("zeus_core/*/README.md"))),
    ],
)
def test_every_file_that_the_pages_on_the_code_name_exists(name):
    page = (ROOT / name).read_text(encoding="utf-8")
    walks = set(re.findall(r"`(\w+\.py)`", page))
    paths = set(re.findall(r"`((?:zeus_|tests|tools|integrations)[\w./]*/[\w./]*)`", page))
    roots = [ROOT, *(ROOT / "integrations").iterdir()]
    assert [path for path in sorted(paths) if not any((root / path).exists() for root in roots)] == []
    assert walks <= {path.name for folder in ("zeus_core", "integrations") for path in (ROOT / folder).rglob("*.py")}


def commands(program):
    """The calls of a program in the shell blocks of all pages, without comments and repetitions."""
    lines = [
        line
        for page in PAGES
        for block in blocks(os.path.relpath(page, ROOT / "docs"), "sh")
        for line in block.splitlines()
    ]
    calls = [shlex.split(line, comments=True) for line in lines]
    return sorted({tuple(call) for call in calls if call and call[0] == program})


def first_of_each(calls):
    """The calls, of which all but the first of each command are for the long tests."""
    seen = set()
    for call in calls:
        if "--measure" in call:  # takes minutes; tests/selfcheck runs it
            continue
        yield pytest.param(call, marks=[pytest.mark.long] if call[1] in seen else [])
        seen.add(call[1])


def test_every_target_of_make_exists():
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert {call[1] for call in commands("make")} <= set(targets)


@pytest.mark.parametrize("program", ["python", "torchrun"])
def test_every_script_exists(program):
    scripts = {word for call in commands(program) for word in call if word.startswith("examples/")}
    assert scripts
    assert [script for script in scripts if not (ROOT / script).exists()] == []


# What nobody here can run, and the word above it by which the page says what it needs.
NEEDS = {
    "docker": "Docker",
    "kubectl": "cluster",
    "sbatch": "Slurm",
    "systemctl": "systemd",
    "systemd-tmpfiles": "systemd",
    "deepspeed": "DeepSpeed",
    "pip install '.": "clone",
    "pip uninstall": "uninstall",
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_no_test_runs_says_above_it_what_it_needs(page):
    above, *parts = re.split(r"^```(?:sh|bash)\n", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    for part in parts:
        block, _, below = part.partition("\n```\n")
        wanted = {word for line in block.splitlines() for begin, word in NEEDS.items() if line.startswith(begin)}
        assert {word for word in wanted if word not in above.rpartition("\n## ")[2] + block} == set(), block
        above += below


# In the layouts of their publishers, and long ago: a command that waits for a cheap hour starts at once.
SIGNALS = {
    "carbon.csv": ["timestamp,value", "2026-03-01 00:00,312", "2026-03-01 01:00,298"],
    "prices.csv": ["timestamp,EUR/kWh", "2026-03-01 00:00Z,0.21", "2026-03-01 01:00Z,0.2"],
    "DE_2025_hourly.csv": [
        "Datetime (UTC),Carbon intensity gCO₂eq/kWh (direct),Carbon intensity gCO₂eq/kWh (Life cycle)",
        "2026-03-01 00:00:00,300,345",
        "2026-03-01 01:00:00,320,365",
    ],
    "dayahead.csv": [
        '"MTU (UTC)","Area","Day-ahead Price (EUR/MWh)"',
        '"01/03/2026 00:00:00 - 01/03/2026 01:00:00","BZN|DE-LU","80.00"',
        '"01/03/2026 01:00:00 - 01/03/2026 02:00:00","BZN|DE-LU","70.00"',
    ],
    "uk.csv": [
        "datetime,from,to,forecast,actual,index",
        "2026-03-01T00:00Z,2026-03-01T00:00Z,2026-03-01T00:30Z,150,153,moderate",
        "2026-03-01T00:30Z,2026-03-01T00:30Z,2026-03-01T01:00Z,157,160,moderate",
    ],
}


@pytest.mark.usefixtures("_recorded")
@pytest.mark.parametrize("call", list(first_of_each(commands("zeus-core"))), ids=lambda call: call[1])
def test_every_command_runs(tmp_path, call):
    smooth_profile(4, clocks=4).to_csv(tmp_path / "profile.csv")
    write_device_tables(tmp_path)
    for name, lines in SIGNALS.items():
        (tmp_path / name).write_text("\n".join(lines))
    if call[1] in {"report", "runs"}:
        for folder in ("output", "nightly", "runs/1"):
            kept_run(tmp_path / folder, steps=4)
    if call[1] == "runs" and call[2] != "add":
        add = [sys.executable, "-m", "zeus_core", "runs", "add", "catalogue", "output"]
        subprocess.run(add, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
        here = {"78b31245": read_run(tmp_path / "output").run, "2026-10": "2026-03"}
        call = [here.get(word, word) for word in call]
    if call[1] == "trace":
        monitor = ZeusMonitor(gpus=[SimulatedGpu(find_preset("A40"))])
        with TrainingEnergy(monitor, folder=tmp_path / "output", trace=True, quiet=True) as energy, energy.step():
            pass
    if call[1] == "jobs":
        job = RecurringJob(
            "nightly", [64, 128], 128, Target("accuracy", 0.6), 10, Time(), f"sqlite:///{tmp_path}/zeus.db"
        )
        with job.run() as recurring_run:
            recurring_run.report(epoch=2, metric=0.7)
    own = [*call[: call.index("--")], "--", "true"] if "--" in call else call  # the user's own command follows
    own = own[: own.index(">")] if ">" in own else own
    own = ["runs/1" if word == "runs/*" else word for word in own]
    own = [*own, "--port", "0"] if call[1] == "exporter" else own  # others may run this test now
    process = subprocess.Popen(
        [sys.executable, "-m", "zeus_core", *own[1:]],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    if call[1] in {"power", "exporter"}:  # which go on until Ctrl-C
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=240)
    assert process.returncode in (0, 130 if call[1] == "power" else 0), errors


def documented_modules():
    """The modules whose docstrings have examples."""
    modules = (module.name for module in pkgutil.walk_packages(zeus_core.__path__, "zeus_core."))
    paths = ((name, ROOT / Path(*name.split("."))) for name in modules)
    return [
        name
        for name, path in paths
        if ">>> " in (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")
    ]


@pytest.mark.parametrize("name", documented_modules())
def test_the_examples_in_docstrings(name):
    failed, tried = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert tried > 0
    assert failed == 0


def test_what_pages_install_can_be_installed_before_a_release():
    wrong = re.compile(r"pip install (-\S+ )*'?zeus-core")
    files = [*PAGES, *(ROOT / "examples").rglob("*.*"), *(ROOT / "zeus_core").rglob("*.service")]
    assert [str(file) for file in files if wrong.search(file.read_text(encoding="utf-8", errors="replace"))] == []
