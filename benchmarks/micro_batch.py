"""How much of the attainable saving `micro_batch="auto"` finds, in real trainings on simulated GPUs with little memory.

    python benchmarks/micro_batch.py [--steps 100]

Each training is done twice: as configured, 4 samples a pass and 8 passes a step, and with the micro-batch that was
chosen. The table has the probes, the saving in joules per sample, its share of what the best size that fits would save,
and the largest difference between the losses of a step, relative to the loss. Exits with 1 if a share is below 0.95, if
there are more than six probes, or if losses differ by more than 1e-4.
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from zeus_core.batches.micro_batch_search import divisors  # noqa: E402
from zeus_core.batches.pytorch import MicroBatches  # noqa: E402
from zeus_core.device import SimulatedGpu, SimulatedNoise, Work, find_preset  # noqa: E402
from zeus_core.monitor import ZeusMonitor  # noqa: E402
from zeus_core.pytorch import SimulatedBatches, SimulatedCompute  # noqa: E402
from zeus_core.testing import VirtualTime  # noqa: E402

MODELS = ("A100-SXM4-80GB", "V100-PCIE-32GB")
SIZE, ACCUMULATION, SAMPLES = 4, 8, 90
FORWARD, BACKWARD = Work(0.2, 350.0), Work(0.4, 350.0)
# The filling of the BERT classifier of the Zeus artifact, and memory for 42 samples on an A100 and 10 on a V100.
FILLING = SimulatedBatches(32, half_samples=6.0, model_gib=16.0, sample_gib=1.5)


def simulate(module: torch.nn.Module, gpu: SimulatedGpu | None) -> None:
    if gpu is not None:
        SimulatedCompute(module, gpu, FORWARD, BACKWARD, batches=FILLING)


def joules_per_sample(gpu: SimulatedGpu, size: int) -> float:
    limit_watts = gpu.read_power_limit_watts()
    works = [FILLING.work_of(work, size) for work in (FORWARD, BACKWARD)]
    points = [gpu.preset.physics.operating_point(work, limit_watts) for work in works]
    return sum(point.energy_joules for point in points) / size


def attained(gpu: SimulatedGpu, chosen: int) -> float:
    fitting = [size for size in divisors(SIZE * ACCUMULATION) if FILLING.memory_gib(size) <= gpu.preset.memory_gib]
    start, best = joules_per_sample(gpu, SIZE), min(joules_per_sample(gpu, size) for size in fitting)
    return (start - joules_per_sample(gpu, chosen)) / (start - best)


def texts() -> list[list[int]]:
    draw = torch.Generator().manual_seed(0)
    lengths = torch.randint(3, 12, (SAMPLES,), generator=draw).tolist()
    return [torch.randint(1, 32, (length,), generator=draw).tolist() for length in lengths]


def language_model() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel, set_seed

    set_seed(0)
    config = GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
    return GPT2LMHeadModel(config)


def arguments_of(folder: Path, steps: int) -> dict[str, Any]:
    return {
        "output_dir": str(folder),
        "per_device_train_batch_size": SIZE,
        "gradient_accumulation_steps": ACCUMULATION,
        "max_steps": steps,
        "logging_steps": 1,
        "use_cpu": True,
        "report_to": "none",
        "disable_tqdm": True,
        "save_strategy": "no",
        "dataloader_pin_memory": False,
    }


def run_trainer(trainer: Any, gpu: SimulatedGpu | None, callback: Any) -> Any:
    simulate(trainer.model, gpu)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return losses, None if callback is None else callback.micro_batch


def train_huggingface(folder: Path, steps: int, gpu: SimulatedGpu | None, monitor: Any) -> Any:
    from transformers import Trainer, TrainingArguments

    from zeus_huggingface import ZeusTrainerCallback

    def collate(samples: list[list[int]]) -> dict[str, torch.Tensor]:
        longest = max(map(len, samples))
        labels = torch.tensor([sample + [-100] * (longest - len(sample)) for sample in samples])
        return {"input_ids": labels.clamp(min=0), "attention_mask": (labels != -100).long(), "labels": labels}

    callback = None if monitor is None else ZeusTrainerCallback(monitor, micro_batch="auto", quiet=True)
    trainer = Trainer(
        model=language_model(),
        args=TrainingArguments(**arguments_of(folder, steps)),
        train_dataset=texts(),  # type: ignore[arg-type]
        data_collator=collate,
        callbacks=[] if callback is None else [callback],
    )
    return run_trainer(trainer, gpu, callback)


def train_trl(folder: Path, steps: int, gpu: SimulatedGpu | None, monitor: Any) -> Any:
    import datasets
    import tokenizers
    import trl
    from transformers import PreTrainedTokenizerFast

    from zeus_huggingface import ZeusTrainerCallback

    vocabulary = {f"w{number}": number for number in range(29)} | {"<pad>": 29, "<eos>": 30, "<unk>": 31}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()  # type: ignore[assignment]
    data = [" ".join(f"w{token % 29}" for token in text) for text in texts()]
    callback = None if monitor is None else ZeusTrainerCallback(monitor, micro_batch="auto", quiet=True)
    trainer = trl.SFTTrainer(
        model=language_model(),
        args=trl.SFTConfig(**arguments_of(folder, steps), max_length=16, bf16=False, gradient_checkpointing=False),
        train_dataset=datasets.Dataset.from_dict({"text": data}),
        processing_class=PreTrainedTokenizerFast(
            tokenizer_object=tokenizer,
            model_input_names=["input_ids", "attention_mask"],
            pad_token="<pad>",
            eos_token="<eos>",
            unk_token="<unk>",
        ),
        callbacks=[] if callback is None else [callback],
    )
    return run_trainer(trainer, gpu, callback)


def regression() -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh()), torch.randn(96, 3), torch.randn(96, 4)


def train_lightning(folder: Path, steps: int, gpu: SimulatedGpu | None, monitor: Any) -> Any:
    import lightning.pytorch as pl

    from zeus_lightning import ZeusCallback

    model, inputs, targets = regression()
    losses: list[float] = []

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = model

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            return torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])

        def on_before_optimizer_step(self, optimizer: Any) -> None:
            with torch.no_grad():  # each step, of all samples
                losses.append(torch.nn.functional.mse_loss(self.layer.forward(inputs), targets).item())

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=0.01)

    data = torch.utils.data.TensorDataset(inputs, targets)
    simulate(model[0], gpu)  # type: ignore[index]
    callback = None if monitor is None else ZeusCallback(monitor, micro_batch="auto", quiet=True)
    trainer = pl.Trainer(
        default_root_dir=str(folder),
        accelerator="cpu",
        callbacks=[] if callback is None else [callback],
        max_steps=steps,
        accumulate_grad_batches=ACCUMULATION,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,  # type: ignore[arg-type]
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(data, SIZE, shuffle=True))
    return losses, None if callback is None else callback.micro_batch


def train_plainly(folder: Path, steps: int, gpu: SimulatedGpu | None, monitor: Any) -> Any:
    model, inputs, targets = regression()
    simulate(model, gpu)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def loss_of(batch: Any) -> torch.Tensor:
        return torch.nn.functional.mse_loss(model(batch[0]), batch[1])

    setting = SIZE if monitor is None else "auto"
    micro_batches = MicroBatches(model, loss_of, setting, original=SIZE, monitor=monitor)  # type: ignore[arg-type]
    losses, step_samples = [], SIZE * ACCUMULATION
    for step in range(steps):
        begin = step % 3 * step_samples
        batch = inputs[begin : begin + step_samples], targets[begin : begin + step_samples]
        losses.append(micro_batches.backward(batch).item())
        optimizer.step()
        optimizer.zero_grad()
    return losses, None if monitor is None else micro_batches.micro_batch


def main() -> int:
    """Print the table; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--steps", type=int, default=100)
    steps = parser.parse_args().steps
    trainings: dict[str, Any] = {
        "Trainer": train_huggingface,
        "TRL SFT": train_trl,
        "Lightning": train_lightning,
        "plain": train_plainly,
    }
    rows, is_good = [], True
    for name, train in trainings.items():
        with tempfile.TemporaryDirectory() as folder, redirect_stdout(io.StringIO()):
            before, _ = train(Path(folder), steps, None, None)
        for model in MODELS:
            noise = SimulatedNoise(seed=1)
            gpu = SimulatedGpu(find_preset(model), time_source=VirtualTime(), noise=noise)
            monitor = ZeusMonitor(gpus=[gpu], cpu_indices=[], time_source=gpu._time_source)
            with tempfile.TemporaryDirectory() as folder, redirect_stdout(io.StringIO()):
                after, chosen = train(Path(folder), steps, gpu, monitor)
            share = attained(gpu, chosen.chosen)
            difference = max(abs(one - other) / abs(other) for one, other in zip(after, before, strict=True))
            saving = 1 - joules_per_sample(gpu, chosen.chosen) / joules_per_sample(gpu, SIZE)
            found = f"{chosen.chosen:6} {chosen.probes:6} {saving:7.1%} {share:8.3f}"
            rows.append(f"{name:10} {model:15} {found} {difference:10.1e}")
            is_good = is_good and share >= 0.95 and chosen.probes <= 6 and difference <= 1e-4
    print(f"{'training':10} {'GPU':15} {'chosen':>6} {'probes':>6} {'saving':>7} {'attained':>8} {'loss diff':>10}")
    print("\n".join(rows))
    return 0 if is_good else 1


if __name__ == "__main__":
    raise SystemExit(main())
