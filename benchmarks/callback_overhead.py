"""Time that the callbacks add to a training step, against an empty callback and a step of 10 ms.

Real Trainers train a model of one layer, logging every 10 steps. The time spent in a callback is the sum over all its
hooks, which are timed one by one, on a simulated GPU. Then the thread that reads energy counters in the background, by
its CPU time, with counters of 100 and 20 ms (A100, V100) of one and four GPUs, and an evaluation every 3 s.
Exits with 1 if a callback takes more than 0.5 % of a 10 ms step, or the thread more than 0.5 % of a core per GPU.

    python benchmarks/callback_overhead.py
"""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

STEPS = 1_000
LOG_EVERY = 10
REPEATS = 3
STEP_SECONDS = 0.010
LIMIT_FRACTION = 0.005
BACKGROUND_SECONDS = 9.0

os.environ["ZEUS_SIMULATED_GPUS"] = "A100:1"
os.environ.setdefault("OMP_NUM_THREADS", "1")


class Stopwatch:
    """Adds up the time spent in the hooks of a callback."""

    def __init__(self) -> None:
        self.seconds = 0.0

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
        setattr(owner, name, self._timed(getattr(owner, name)))

    def _timed(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        def timed_hook(*args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter()
            try:
                return hook(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - begin

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


def seconds_per_step(callback: Any, train: Callable[[Any, str], None]) -> float:
    stopwatch = Stopwatch()
    with tempfile.TemporaryDirectory() as folder:
        train(stopwatch.watch(callback), folder)
    return stopwatch.seconds / STEPS


def background_fraction(gpus: str) -> float:
    """Return the share of a core that reading the counters of some GPUs takes for each, in training."""
    from zeus_core.device import discover_gpus
    from zeus_core.events import Activity
    from zeus_core.monitor import ZeusMonitor
    from zeus_core.training import TrainingEnergy

    monitor = ZeusMonitor(gpus=list(discover_gpus({"ZEUS_SIMULATED_GPUS": gpus})))

    def train(seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with energy.step():
                time.sleep(STEP_SECONDS)
        with energy.during(Activity.EVALUATION):
            time.sleep(0.2)

    with TrainingEnergy(monitor, quiet=True) as energy:
        thread = next(thread for thread in threading.enumerate() if thread.name == "zeus-core counter")
        clock = time.pthread_getcpuclockid(thread.ident or 0)
        train(3.0)  # the updates of the counters are found
        begin, cpu_begin = time.monotonic(), time.clock_gettime(clock)
        while time.monotonic() < begin + BACKGROUND_SECONDS:
            train(3.0)
        return (time.clock_gettime(clock) - cpu_begin) / (time.monotonic() - begin) / len(monitor.gpus)


def main() -> int:
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    is_within = True
    for framework, (make_callbacks, train) in FRAMEWORKS.items():
        if importlib.util.find_spec(framework) is None:
            print(f"{framework}: SKIPPED, not installed")
            continue
        # Both in turn, and the best of each: what else the machine does only adds.
        times = [[seconds_per_step(callback, train) for callback in make_callbacks()] for _ in range(REPEATS)]
        empty, ours = (min(column) for column in zip(*times, strict=True))
        fraction = (ours - empty) / STEP_SECONDS
        is_within &= fraction <= LIMIT_FRACTION
        print(
            f"{framework}: {ours * 1e6:.1f} us per step, {ours / empty:.1f} times an empty callback, "
            f"{fraction:.2%} of a {STEP_SECONDS * 1e3:.0f} ms step (limit {LIMIT_FRACTION:.1%})"
        )
    for gpus in ("A100:1", "A100:4", "V100:1", "V100:4"):
        fraction = background_fraction(gpus)
        is_within &= fraction <= LIMIT_FRACTION
        print(f"background, {gpus}: {fraction:.2%} of a core per GPU (limit {LIMIT_FRACTION:.1%})")
    return 0 if is_within else 1


if __name__ == "__main__":
    sys.exit(main())
