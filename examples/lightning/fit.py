"""Train a small language model with Lightning, see where its energy goes, and find the GPU's power limit meanwhile.

With `--simulate` the model trains on the CPU while a simulated GPU sets the pace and burns the joules; without it, it
trains on the GPU that Lightning finds. Everything is written under `--output`. Exits with 1 if nothing was measured.

    python examples/lightning/fit.py --simulate A100-SXM4-80GB
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import sysconfig
from pathlib import Path

import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer, seed_everything

from zeus_core.device import Work
from zeus_core.monitor import ZeusMonitor
from zeus_core.pytorch import SimulatedCompute
from zeus_lightning import ZeusCallback

SEQUENCE_BYTES = 65
TRAINING_BYTES = 200_000
VALIDATION_BYTES = 4_000

# A forward pass of GPT-3 XL as fitted to its published sweep on A100s, shortened to suit a demonstration.
FORWARD_WORK = Work(seconds=0.04, active_power_watts=484.9, active_fraction=0.938, compute_bound_fraction=0.744)


class LanguageModel(LightningModule):
    """Guesses the next byte."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(256, width)
        self.layer = torch.nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.head = torch.nn.Linear(width, 256)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = torch.nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        return self.head(self.layer(self.embedding(tokens), src_mask=mask, is_causal=True))

    def loss(self, batch: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        loss = self.loss(batch)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), 1e-3)


class Sources(LightningDataModule):
    """The standard library's own sources: real text that every machine has."""

    def __init__(self, batch_size: int = 8) -> None:
        super().__init__()
        self.batch_size = batch_size
        paths = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
        text = b"".join(path.read_bytes() for path in paths)[: TRAINING_BYTES + VALIDATION_BYTES]
        self.tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()

    def batches(self, tokens: torch.Tensor) -> torch.utils.data.DataLoader[torch.Tensor]:
        sequences = tokens[: len(tokens) // SEQUENCE_BYTES * SEQUENCE_BYTES].view(-1, SEQUENCE_BYTES)
        return torch.utils.data.DataLoader(sequences, self.batch_size)  # type: ignore[arg-type]

    def train_dataloader(self) -> torch.utils.data.DataLoader[torch.Tensor]:
        return self.batches(self.tokens[VALIDATION_BYTES:])

    def val_dataloader(self) -> torch.utils.data.DataLoader[torch.Tensor]:
        return self.batches(self.tokens[:VALIDATION_BYTES])


class OnSimulatedGpu(Callback):
    """Lets the module train on the first simulated GPU."""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.compute = SimulatedCompute(pl_module, ZeusMonitor().gpus[0], FORWARD_WORK)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.compute.detach()


def parsed_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulate", metavar="MODEL", help="GPU model to simulate, such as A100-SXM4-80GB")
    parser.add_argument(
        "--output", type=Path, default=Path("zeus-lightning"), help="folder for all files (%(default)s)"
    )
    parser.add_argument("--steps", type=int, default=150, help="optimizer steps (%(default)s)")
    return parser.parse_args()


def main() -> int:
    arguments = parsed_arguments()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    logging.getLogger("zeus_core").setLevel(logging.INFO)
    callbacks: list[Callback] = [energy := ZeusCallback(optimizer="auto", tokens=lambda batch: batch.numel())]
    if arguments.simulate:
        os.environ["ZEUS_SIMULATED_GPUS"] = arguments.simulate
        torch.set_num_threads(1)
        callbacks.append(OnSimulatedGpu())
    seed_everything(0)
    trainer = Trainer(
        accelerator="cpu" if arguments.simulate else "auto",
        max_steps=arguments.steps,
        val_check_interval=50,
        log_every_n_steps=10,
        default_root_dir=arguments.output,
        callbacks=callbacks,
    )
    trainer.fit(LanguageModel(), datamodule=Sources())
    print(energy.summary)
    return 0 if energy.summary.not_measured is None else 1


if __name__ == "__main__":
    sys.exit(main())
