"""The energy of a training in the model card that its Trainer writes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard
from transformers import Trainer

from zeus_core.training import TrainingEnergy, TrainingSummary
from zeus_core.training.charges.charged_electricity import electricity_source
from zeus_core.units import kilowatt_hours_from_joules, number_text

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


def add_energy(folder: Path, energy: TrainingEnergy) -> None:
    """Add the energy of the training that has ended to the model card in a folder, if there are both.

    With a carbon intensity, the emissions of the whole run are added to the metadata, in the fields that the Hub reads.

    Raises:
        OSError: The card cannot be read or written.
    """
    path, summary = folder / "README.md", energy.summary
    joules = summary.account.total.energy_joules
    if summary.not_measured is not None or joules is None or not path.exists():
        return
    rows = {"energy in kWh": number_text(kilowatt_hours_from_joules(joules)), **energy.result()}
    table = "\n".join(f"| {label} | {text} |" for label, text in rows.items())
    section = f"{_HEADING}\n\nThe energy is that of the GPUs, measured by zeus-core.\n\n| | |\n|---|---|\n{table}\n"
    card: Any = ModelCard.load(path)
    emissions = _emissions(summary, rows["measured on"])
    if emissions:
        is_tuned = getattr(card.data, "base_model", None) is not None
        training_type = {"training_type": "fine-tuning"} if is_tuned else {}  # without a base it may be anything
        card.data.co2_eq_emissions = emissions | training_type
    card.text = _without_section(card.text).rstrip("\n") + f"\n\n{section}"
    card.save(path)


def _emissions(summary: TrainingSummary, hardware: str) -> dict[str, Any]:
    """Return the emissions in the fields of the Hub; empty if they are not known."""
    electricity, grams = summary.electricity, summary.co2_grams
    if electricity is None or electricity.intensity is None or grams is None:
        return {}
    measured = electricity_source(summary.account, electricity.intensity, electricity)
    stale_fraction = summary.values()["train_co2_eq_stale_fraction"]
    stale = f"; {stale_fraction:.0%} of it at the mean intensity" if stale_fraction > 0 else ""
    location = {} if electricity.location is None else {"geographical_location": electricity.location}
    return {
        "emissions": grams,
        "source": f"measured by zeus-core: energy of {measured}{stale}",
        **location,
        "hardware_used": hardware,
    }


def _without_section(text: str) -> str:
    """Remove the section that an earlier call has added."""
    return re.sub(rf"^{re.escape(_HEADING)}\n.*?(?=^## |\Z)", "", text, flags=re.MULTILINE | re.DOTALL)
