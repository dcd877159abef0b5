"""Programs whose outputs are frozen: each trains on a simulated GPU in virtual time, and returns what a user sees.

A program is called with a folder, and returns texts and documents by name: the box, what was logged, `result`,
the run file, and `zeus-core report` of it.
"""

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.support.result_boxes import rows
from zeus_core.cli import main as zeus_core
from zeus_core.device import SimulatedGpu, SimulatedNoise, Work, find_preset
from zeus_core.device.cpu import CpuDiscovery
from zeus_core.events import Activity
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer import GlobalPowerLimitOptimizer, MaxSlowdownConstraint
from zeus_core.pytorch import SimulatedCompute
from zeus_core.testing import VirtualTime
from zeus_core.training import TrainingEnergy

Output = dict[str, Any]
WORKS = Work(0.1, 484.9, 0.938, 0.744), Work(0.2, 484.9, 0.938, 0.744)  # forward and backward; the limit binds
STEPS = 400


def gpu_and_monitor(noise: float = 0.01) -> tuple[SimulatedGpu, ZeusMonitor]:
    """A simulated A100, whose steps scatter by a fraction, and a monitor of it alone."""
    time_source = VirtualTime()
    gpu = SimulatedGpu(find_preset("A100"), time_source=time_source, noise=SimulatedNoise(noise, noise, seed=1))
    return gpu, ZeusMonitor(gpus=[gpu], cpus=CpuDiscovery(()), gpu_indices=[0], time_source=time_source)


@contextlib.contextmanager
def streams():
    """Collect standard output and standard error."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield out, err


def box_in(text: str) -> list[str]:
    """The lines of the boxes in a text."""
    return [line for line in text.splitlines() if line.startswith(("|", "+-"))]


def report(folder: Path) -> list[str]:
    """The lines of `zeus-core report` of a run, without the section on this machine and its packages."""
    with streams() as (out, _):
        assert zeus_core(["report", str(folder)]) == 0
    return out.getvalue().partition("\n## Hardware and versions")[0].splitlines()


def document(folder: Path) -> Any:
    """The run file."""
    return json.loads((folder / "zeus-energy" / "run.json").read_text())


def seen(folder: Path, err: io.StringIO, logged: dict[str, Any], **more: Any) -> Output:
    """The box, what was logged, more, and the run file with its report if there is one."""
    output = {"box": box_in(err.getvalue()), "logged": logged, **more}
    if (folder / "zeus-energy").exists():
        output |= {"run": document(folder), "report": report(folder)}
    return output


def last_of(logs: list[dict[str, Any]]) -> dict[str, Any]:
    """The last value of each name that was logged."""
    return {name: value for entry in logs for name, value in entry.items() if isinstance(value, (int, float))}


def measured_trainer(folder: Path) -> Output:
    """A Trainer of transformers that is measured."""
    from zeus_huggingface import ZeusTrainerCallback

    gpu, monitor = gpu_and_monitor()
    return _trainer(folder, gpu, ZeusTrainerCallback(monitor))


def saving_trainer(folder: Path) -> Output:
    """A Trainer of transformers whose power limit is searched."""
    from zeus_huggingface import ZeusTrainerCallback

    gpu, monitor = gpu_and_monitor()
    optimizer = GlobalPowerLimitOptimizer(monitor, MaxSlowdownConstraint(1.1))
    return _trainer(folder, gpu, ZeusTrainerCallback(monitor, optimizer=optimizer))


def published_optimizer(folder: Path) -> Output:
    """A Trainer of transformers with the published callback, which searches and keeps no account."""
    from zeus_huggingface import HFGlobalPowerLimitOptimizer

    gpu, monitor = gpu_and_monitor()
    return _trainer(folder, gpu, HFGlobalPowerLimitOptimizer(monitor, MaxSlowdownConstraint(1.1)))


def _trainer(folder: Path, gpu: SimulatedGpu, callback: Any) -> Output:
    from tests.huggingface.trainers import examples, make_trainer

    trainer = make_trainer(
        folder,
        [callback],
        max_steps=STEPS,
        logging_steps=50,
        eval_strategy="steps",
        eval_steps=200,
        save_strategy="steps",
        save_steps=200,
    )
    trainer.train_dataset = examples(2 * STEPS)
    SimulatedCompute(trainer.model, gpu, *WORKS)
    with streams() as (_, err):
        trainer.train()
    return seen(folder, err, last_of(trainer.state.log_history))


def lightning(folder: Path) -> Output:
    """A Trainer of Lightning whose power limit is searched."""
    from lightning.pytorch import LightningModule

    from tests.lightning.trainers import loader, make_trainer, recorder
    from zeus_lightning import ZeusCallback

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = self.layer(batch).square().mean()
            self.log("loss", loss)
            return loss

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.layer(batch)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.01)

    gpu, monitor = gpu_and_monitor()
    callback = ZeusCallback(monitor, optimizer=GlobalPowerLimitOptimizer(monitor, MaxSlowdownConstraint(1.1)))
    module, logger = Module(), recorder()
    SimulatedCompute(module.layer, gpu, *WORKS)
    trainer = make_trainer(folder, [callback], max_steps=STEPS, logger=logger, log_every_n_steps=50)
    with streams() as (_, err):
        trainer.fit(module, loader(200), loader(4))
    return seen(folder, err, last_of([metrics for _, metrics in logger.logged]))


def accelerate(folder: Path) -> Output:
    """A loop with accelerate that is measured."""
    from tests.accelerate.loop import Loop
    from zeus_huggingface.accelerate import ZeusAccelerate

    gpu, monitor = gpu_and_monitor()
    loop = Loop(folder, gpu)
    with streams() as (_, err), ZeusAccelerate(loop.accelerator, monitor) as energy:
        loop.train_and_log(40, every=10)
        with energy.during(Activity.EVALUATION):
            loop.evaluate()
    return seen(folder, err, last_of(loop.logged()), result=energy.result())


def own_loop(folder: Path) -> Output:
    """A loop of a user's own whose power limit is searched, with tokens, samples and an evaluation."""
    gpu, monitor = gpu_and_monitor()
    optimizer = GlobalPowerLimitOptimizer(monitor, MaxSlowdownConstraint(1.1))
    with streams() as (_, err), TrainingEnergy(optimizer=optimizer, folder=folder) as energy:
        for step in range(STEPS):
            with energy.step(samples=4, tokens=512):
                for work in WORKS:
                    gpu.execute(work)
            if step % 100 == 99:
                with energy.during(Activity.EVALUATION):
                    gpu.execute(Work(2.0, 200.0))
    return seen(folder, err, energy.summary.log_values(), result=energy.result())


def perseus(folder: Path) -> Output:
    """A pipeline of two stages of DeepSpeed whose clocks are planned."""
    from tests.deepspeed.engines import run_engines
    from tests.support.virtual_time import SharedTimes

    os.environ["ZEUS_SIMULATED_GPUS"] = "A100-SXM4-80GB:4"  # found, and then not used
    try:
        first, second = run_engines(2, _perseus_rank, SharedTimes(2, 8))
    finally:
        del os.environ["ZEUS_SIMULATED_GPUS"]
    return {"first rank": first, "second rank": second}


def _perseus_rank(times: Any) -> Output:
    from tests.deepspeed.virtual_engine import Trainer

    trainer = Trainer(times, 2, 8, "A100-SXM4-80GB")
    trainer.train(46)
    result = trainer.optimizer.result()
    record = trainer.end()
    return {
        "result": result,
        "phases": list(dict.fromkeys(record.phases)),
        "seconds of the last step": record.seconds[-1],
        "joules of the first and the last step": [record.joules[0], record.joules[-1]],
        "clocks in MHz": sorted({clock for clock in _numbers(record.latest["clocks"]) if clock}),
        "end": [record.end_phase, record.end_clock_mhz],
    }


def _numbers(value: Any) -> list[int]:
    if isinstance(value, dict):
        return [number for each in value.values() for number in _numbers(each)]
    if isinstance(value, (list, tuple)):
        return [number for each in value for number in _numbers(each)]
    return [value] if isinstance(value, int) else []


ALWAYS = ("measured on", "simulated", "energy", "steps", "spent on", "power limit")  # the others depend on the search
LOOP = """
import time, torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for step in range(100):
    time.sleep(0.02)
    model(torch.ones(8, 4)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def run_command(folder: Path) -> Output:
    """`zeus-core run --save` of a script that knows nothing of us: what its lines are about, as it is in real time."""
    (folder / "train.py").write_text(LOOP)
    command = [
        sys.executable,
        "-m",
        "zeus_core",
        "run",
        "--save",
        "10%",
        "--output",
        "energy.json",
        "--",
        sys.executable,
    ]
    environment = {**os.environ, "ZEUS_SIMULATED_GPUS": "A100", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ended = subprocess.run([*command, "train.py"], cwd=folder, env=environment, capture_output=True, text=True)
    lines = [line for line in ended.stderr.splitlines() if not line.startswith(("|", "+-"))]
    return {
        "exit code": ended.returncode,
        "box": [label for label in rows("\n".join(box_in(ended.stderr))) if label in ALWAYS],
        "summary": [re.sub(r"[\d.]+", "#", " ".join(line.split()[:2])) for line in lines if line.startswith("  ")],
        "file": sorted(json.loads((folder / "energy.json").read_text())),
    }


PROGRAMS: dict[str, Callable[[Path], Output]] = {
    "measured_trainer": measured_trainer,
    "saving_trainer": saving_trainer,
    "published_optimizer": published_optimizer,
    "lightning": lightning,
    "accelerate": accelerate,
    "own_loop": own_loop,
    "perseus": perseus,
    "run_command": run_command,
}
