"""CPU time that the callbacks add to a training step, against an empty callback and a step of 10 ms.

Real Trainers train a model of one layer, logging every 10 steps, on a simulated GPU. All hooks of a callback are timed
one by one, by the CPU time of their thread: the turns of other programs do not count. The hooks before the first step
and after the last one, which come once in a training, are added up apart.

Then steps of 10 ms with a log each second and an evaluation every 3 s, with counters of 100 and 20 ms (A100, V100) of
one GPU and of several: what a log takes, and what all threads in the background take together, per GPU.

Exits with 1 if a callback takes more than 0.2 % of a 10 ms step, or more than 30 ms once; a log of one GPU, in the
median, more than 1 ms; or the background more than 0.5 % of a core per GPU.

    python benchmarks/callback_overhead.py
"""

from __future__ import annotations

import gc
import importlib.util
import logging
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

STEPS = 1_000
LOG_EVERY = 10
REPEATS = 3
STEP_SECONDS = 0.010
LIMIT_FRACTION, LIMIT_ONCE_SECONDS, LIMIT_LOG_SECONDS = 0.002, 0.030, 0.001
BACKGROUND_LIMIT_FRACTION, BACKGROUND_SECONDS = 0.005, 12.0

os.environ["ZEUS_SIMULATED_GPUS"] = "A100:1"
os.environ.setdefault("OMP_NUM_THREADS", "1")


class Stopwatch:
    """Adds up the CPU time spent in the hooks of a callback: between the first step and the last, and outside."""

    def __init__(self) -> None:
        self.seconds = self.once_seconds = 0.0
        self._begun = self._ended = 0

    def watch(self, callback: Any) -> Any:
        for name in dir(callback):
            if name.startswith("on_") or name in {"setup", "teardown", "state_dict"}:
                self._time(callback, name)
        listener = getattr(callback, "listener", None)  # the Trainer's patched methods call it, and its reporter
        if listener is not None:
            for name in ("enter_training", "leave_training", "pause", "resume"):
                self._time(listener, name)
            for name in ("values_to_log", "training_metrics"):
                self._time(listener.reporter, name)
        return callback

    def _time(self, owner: Any, name: str) -> None:
        setattr(owner, name, self._timed(name, getattr(owner, name)))

    def _timed(self, name: str, hook: Callable[..., Any]) -> Callable[..., Any]:
        begins, ends = name in {"on_step_begin", "on_train_batch_start"}, name in {"on_step_end", "on_train_batch_end"}

        def timed_hook(*args: Any, **kwargs: Any) -> Any:
            self._begun += begins
            is_of_steps = self._begun > 0 and self._ended < STEPS
            begin = time.thread_time()
            try:
                return hook(*args, **kwargs)
            finally:
                seconds = time.thread_time() - begin
                self.seconds += seconds if is_of_steps else 0.0
                self.once_seconds += 0.0 if is_of_steps else seconds
                self._ended += ends

        return timed_hook


def train_with_huggingface(callback: Any, folder: str) -> None:
    import torch
    from transformers import PrinterCallback, Trainer, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def forward(self, x: Any, labels: Any) -> Any:
            return {"loss": (self.layer(x) - labels).square().mean()}

    arguments = TrainingArguments(
        output_dir=folder,
        max_steps=STEPS,
        logging_steps=LOG_EVERY,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        per_device_train_batch_size=1,
        dataloader_pin_memory=False,
    )
    data = [{"x": torch.ones(4), "labels": torch.ones(1)}] * STEPS
    trainer = Trainer(model=Model(), args=arguments, train_dataset=data, callbacks=[callback])
    trainer.remove_callback(PrinterCallback)
    trainer.train()


def huggingface_callbacks() -> tuple[Any, Any]:
    from transformers import TrainerCallback

    from zeus_huggingface import ZeusTrainerCallback

    return TrainerCallback(), ZeusTrainerCallback()


def train_with_lightning(callback: Any, folder: str) -> None:
    import torch
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.loggers import Logger

    class QuietLogger(Logger):  # what a real one takes is not ours
        name, version = "quiet", 0

        def log_metrics(self, *_: Any, **__: Any) -> None:
            pass

        def log_hyperparams(self, *_: Any, **__: Any) -> None:
            pass

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: Any, _: int) -> Any:
            return self.layer(batch).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer = Trainer(
        max_steps=STEPS,
        log_every_n_steps=LOG_EVERY,
        accelerator="cpu",
        logger=QuietLogger(),
        callbacks=[callback],
        default_root_dir=folder,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(torch.ones(STEPS, 4)))


def lightning_callbacks() -> tuple[Any, Any]:
    from lightning.pytorch import Callback

    from zeus_lightning import ZeusCallback

    return Callback(), ZeusCallback()


FRAMEWORKS = {
    "transformers": (huggingface_callbacks, train_with_huggingface),
    "lightning": (lightning_callbacks, train_with_lightning),
}


def seconds_of(callback: Any, train: Callable[[Any, str], None]) -> tuple[float, float]:
    """Return the CPU time of the hooks in each step, and once."""
    stopwatch = Stopwatch()
    with tempfile.TemporaryDirectory() as folder:
        train(stopwatch.watch(callback), folder)
    return stopwatch.seconds / STEPS, stopwatch.once_seconds


def background_and_log(gpus: str) -> tuple[float, float]:
    """Return the share of a core that all threads take for each of some GPUs, in training, and the seconds of a log."""
    from zeus_core.device import discover_gpus
    from zeus_core.events import Activity
    from zeus_core.monitor import ZeusMonitor
    from zeus_core.training import TrainingEnergy

    monitor = ZeusMonitor(gpus=list(discover_gpus({"ZEUS_SIMULATED_GPUS": gpus})))
    logs: list[float] = []

    def train(seconds: float) -> None:
        for _ in range(round(seconds)):
            end = time.monotonic() + 1.0
            while time.monotonic() < end:
                with energy.step():
                    time.sleep(STEP_SECONDS)
            begin = time.thread_time()
            energy.log()
            logs.append(time.thread_time() - begin)
        with energy.during(Activity.EVALUATION):
            time.sleep(0.2)

    with tempfile.TemporaryDirectory() as folder, TrainingEnergy(monitor, folder=folder, quiet=True) as energy:
        train(3.0)  # the updates of the counters are found
        begin, cpu_begin = time.monotonic(), time.process_time() - time.thread_time()  # of all threads but this one
        while time.monotonic() < begin + BACKGROUND_SECONDS:
            train(3.0)
        cpu_seconds = time.process_time() - time.thread_time() - cpu_begin
        fraction = cpu_seconds / (time.monotonic() - begin) / len(monitor.gpus)
    return fraction, statistics.median(logs[3:])


def main() -> int:
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    is_within = True
    from zeus_core.device import Work, discover_gpus

    discover_gpus()[0].submit(Work(1e-3, 100.0))  # a GPU that has work is given none for each step, which takes 0.1 ms
    for framework, (make_callbacks, train) in FRAMEWORKS.items():
        if importlib.util.find_spec(framework) is None:
            print(f"{framework}: SKIPPED, not installed")
            continue
        # Both in turn, and the best of each: what else the machine does only adds.
        times = [[seconds_of(callback, train) for callback in make_callbacks()] for _ in range(REPEATS)]
        columns = zip(*times, strict=True)
        (empty, _), (ours, once) = (map(min, zip(*column, strict=True)) for column in columns)
        fraction = (ours - empty) / STEP_SECONDS
        is_within &= fraction <= LIMIT_FRACTION and once <= LIMIT_ONCE_SECONDS
        print(
            f"{framework}: {ours * 1e6:.1f} us per step, {ours / empty:.1f} times an empty callback, "
            f"{fraction:.2%} of a {STEP_SECONDS * 1e3:.0f} ms step (limit {LIMIT_FRACTION:.1%}); once "
            f"{once * 1e3:.1f} ms (limit {LIMIT_ONCE_SECONDS * 1e3:.0f} ms)",
            flush=True,
        )
    gc.collect()
    gc.freeze()  # else a thread of ours may be the one that looks through the objects of the frameworks, for 0.1 s
    for gpus in ("A100:1", "A100:4", "A100:8", "V100:1", "V100:8"):
        fraction, log_seconds = background_and_log(gpus)
        is_within &= fraction <= BACKGROUND_LIMIT_FRACTION
        limit = ""
        if gpus.endswith(":1"):
            limit = f" (limit {LIMIT_LOG_SECONDS * 1e3:.0f} ms)"
            is_within &= log_seconds <= LIMIT_LOG_SECONDS
        print(
            f"background, {gpus}: {fraction:.2%} of a core per GPU (limit {BACKGROUND_LIMIT_FRACTION:.1%}); a log "
            f"{log_seconds * 1e3:.2f} ms{limit}",
            flush=True,
        )
    return 0 if is_within else 1


if __name__ == "__main__":
    sys.exit(main())
