"""The energy of a training in the model card that its Trainer writes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard
from transformers import Trainer

from zeus_core._units import kilowatt_hours_from_joules
from zeus_core.training import TrainingEnergy

__all__ = ["add_energy", "evaluations_without_energy"]

_HEADING = "## Energy of the training"


@contextmanager
def evaluations_without_energy(trainer: Trainer) -> Iterator[None]:
    """Hide the energies of evaluations from a model card: it would show them as if they were the model's."""
    history = trainer.state.log_history
    trainer.state.log_history = [
        {name: value for name, value in entry.items() if "eval_loss" not in entry or not name.endswith("_energy_j")}
        for entry in history
    ]
    try:
        yield
    finally:
        trainer.state.log_history = history


def add_energy(trainer: Trainer, energy: TrainingEnergy) -> None:
    """Add the energy of the training that has ended to the model card in its output folder, if there are both.

    With a carbon intensity, the emissions are added to the metadata, in the fields that the Hub reads.

    Raises:
        OSError: The card cannot be read or written.
    """
    path, summary = Path(str(trainer.args.output_dir)) / "README.md", energy.summary
    joules = None if summary is None else summary.account.total.energy_joules
    if summary is None or joules is None or not path.exists():
        return
    rows = {"energy in kWh": f"{kilowatt_hours_from_joules(joules):.4g}", **energy.result()}
    table = "\n".join(f"| {label} | {text} |" for label, text in rows.items())
    section = f"{_HEADING}\n\nGPUs alone, measured by zeus-core.\n\n| | |\n|---|---|\n{table}\n"
    card: Any = ModelCard.load(path)
    if summary.co2_grams is not None:
        card.data.co2_eq_emissions = {
            "emissions": summary.co2_grams,
            "source": f"zeus-core: energy of the GPUs, at {summary.grams_co2_per_kwh:g} g/kWh",
            "hardware_used": rows["measured on"],
        }
    card.text = _without_section(card.text).rstrip("\n") + f"\n\n{section}"
    card.save(path)


def _without_section(text: str) -> str:
    """Remove the section that an earlier call has added."""
    return re.sub(rf"^{re.escape(_HEADING)}\n.*?(?=^## |\Z)", "", text, flags=re.MULTILINE | re.DOTALL)
