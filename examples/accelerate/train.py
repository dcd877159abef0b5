"""A loop written with accelerate: where its energy goes, and a GPU power limit chosen meanwhile.

With `--simulate` the model trains on the CPU while a simulated GPU sets the pace and burns the joules. Everything is
written under `--output`; `--resume` goes on from the latest checkpoint there. With two processes:

    python examples/accelerate/train.py --simulate A100-SXM4-80GB
    torchrun --nproc-per-node 2 examples/accelerate/train.py --simulate A100-SXM4-80GB
"""

from __future__ import annotations

import argparse
import logging
import os
import sysconfig
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader

from zeus_core.device import Work
from zeus_core.monitor import ZeusMonitor
from zeus_core.pytorch import SimulatedCompute
from zeus_huggingface.accelerate import ZeusAccelerate, ZeusTracker

SEQUENCE_BYTES = 65
TRAINING_BYTES = 800_000
EVALUATION_BYTES = 4_000

# A forward pass of GPT-3 XL as fitted to its published sweep on A100s, shortened to suit a demonstration.
FORWARD_WORK = Work(seconds=0.01, active_power_watts=484.9, active_fraction=0.938, compute_bound_fraction=0.744)


class LanguageModel(torch.nn.Module):
    """Guesses the next byte; called with sequences, it returns its loss."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(256, width)
        self.layer = torch.nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.head = torch.nn.Linear(width, 256)

    def forward(self, sequences: torch.Tensor) -> torch.Tensor:
        tokens, targets = sequences[:, :-1], sequences[:, 1:]
        mask = torch.nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        guesses = self.head(self.layer(self.embedding(tokens), src_mask=mask, is_causal=True))
        return torch.nn.functional.cross_entropy(guesses.flatten(0, 1), targets.flatten())


def sequences(begin: int, size: int) -> torch.Tensor:
    """Cut sequences from the standard library's own sources: real text that every machine has."""
    paths = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    text = b"".join(path.read_bytes() for path in paths)[begin : begin + size]
    tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    return tokens[: len(tokens) // SEQUENCE_BYTES * SEQUENCE_BYTES].view(-1, SEQUENCE_BYTES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulate", metavar="MODEL", help="GPU to simulate for each process, such as A100-SXM4-80GB")
    parser.add_argument("--output", type=Path, default=Path("zeus-accelerate"), help="folder (%(default)s)")
    parser.add_argument("--steps", type=int, default=600, help="optimizer steps (%(default)s)")
    parser.add_argument("--resume", action="store_true", help="go on from the latest checkpoint")
    arguments = parser.parse_args()
    if arguments.simulate:
        os.environ["ZEUS_SIMULATED_GPUS"] = f"{arguments.simulate}:{os.environ.get('LOCAL_WORLD_SIZE', 1)}"
        torch.set_num_threads(1)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    logging.getLogger("zeus_core").setLevel(logging.INFO)  # says what the search does
    set_seed(0)
    train(arguments)


def train(arguments: argparse.Namespace) -> None:
    tracker = ZeusTracker("log", arguments.output)  # or "tensorboard", "wandb", ...
    accelerator = Accelerator(cpu=bool(arguments.simulate), log_with=tracker, project_dir=arguments.output)
    model = LanguageModel()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    batches = DataLoader(sequences(EVALUATION_BYTES, TRAINING_BYTES), 8, shuffle=True)  # type: ignore[arg-type]
    evaluation_batches = DataLoader(sequences(0, EVALUATION_BYTES), 8)  # type: ignore[arg-type]
    monitor = ZeusMonitor()
    if arguments.simulate:
        SimulatedCompute(model, monitor.gpus[monitor.gpu_indices[0]], FORWARD_WORK)

    model, optimizer, batches, evaluation_batches = accelerator.prepare(model, optimizer, batches, evaluation_batches)
    accelerator.init_trackers("example")
    with ZeusAccelerate(accelerator, monitor, optimizer="auto") as energy:
        step = 0
        if arguments.resume:
            accelerator.load_state(arguments.output / "checkpoint")
            step = energy.steps
        for batch in accelerator.skip_first_batches(batches, step):
            with accelerator.accumulate(model):
                loss = model(batch)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            step += 1
            if step % 25 == 0:
                accelerator.log({"loss": loss.item()}, step=step)
                accelerator.print(f"step {step} of {arguments.steps}: loss {loss.item():.3f}")
            if step % 50 == 0:
                with energy.evaluation():
                    evaluation_loss = evaluate(model, evaluation_batches)
                accelerator.log({"eval_loss": evaluation_loss}, step=step)
                accelerator.save_state(arguments.output / "checkpoint")
            if step >= arguments.steps:
                break
        accelerator.end_training()
    if accelerator.is_main_process:
        print(energy.summary)


@torch.no_grad()
def evaluate(model: torch.nn.Module, batches: DataLoader[torch.Tensor]) -> float:
    """Return the mean loss of this process's share."""
    model.eval()
    losses = [model(batch).item() for batch in batches]
    model.train()
    return sum(losses) / len(losses)


if __name__ == "__main__":
    main()
