"""Where a Trainer writes the energy of its training: in its logs, in its model card, and in each checkpoint."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import ProgressCallback, Trainer

from zeus_core.adapters import contained
from zeus_core.files import write_atomically
from zeus_core.training import TrainingEnergy
from zeus_core.units import energy_text
from zeus_huggingface._model_card import add_energy

_FILE_NAME = "zeus_energy.json"  # in a checkpoint folder

_logger = logging.getLogger(__name__)


class EnergyLog:
    """Adds the values of a `TrainingEnergy` to what a Trainer logs and shows. The methods do not raise.

    Args:
        energy: Source of the values.

    Attributes:
        energy: As passed.
    """

    def __init__(self, energy: TrainingEnergy) -> None:
        self.energy = energy
        self._tokens_seen = 0

    def begin(self, trainer: Trainer) -> None:
        """Count the tokens of a Trainer from now on."""
        self._tokens_seen = _tokens_seen_by(trainer)

    @contained(default=dict[str, float])
    def values(self, trainer: Trainer, logs: dict[str, float], is_evaluating: bool) -> dict[str, float]:
        """Return values for the logs of the Trainer itself, which are made on all ranks; a user's own may not be."""
        if "loss" in logs and trainer.control.should_log:
            self._count_tokens(trainer)
            values = self.energy.log()
            self.energy.record_losses({"loss": logs["loss"]})
            self._show(trainer, values)
            return values
        if "train_runtime" in logs and "train_loss" in logs:
            self.energy.finish()
            return self.energy.summary.log_values()
        prefixes = [name.removesuffix("_runtime") for name in logs if name.endswith("_runtime")]
        if prefixes and is_evaluating:
            values = self.energy.log_evaluation(prefixes[0])
            self.energy.record_losses(_results_of_evaluation(logs))
            return values
        return {}

    @contained
    def add_to_model_card(self, trainer: Trainer, folder: Path) -> None:
        """Add the energy of the training that has ended to a model card that has just been written to a folder."""
        if trainer.is_world_process_zero():
            add_energy(folder, self.energy)

    def _count_tokens(self, trainer: Trainer) -> None:
        """Count on the first rank alone: the Trainer's number is that of all ranks."""
        seen = _tokens_seen_by(trainer)
        if trainer.state.is_world_process_zero:
            self.energy.count(tokens=max(seen - self._tokens_seen, 0))
        self._tokens_seen = seen

    @contained
    def _show(self, trainer: Trainer, values: dict[str, float]) -> None:
        """Show power and energy in the progress bar."""
        if "power_w" not in values:
            return
        total = f", {energy_text(values['total_energy_j'])}" if "total_energy_j" in values else ""
        for callback in trainer.callback_handler.callbacks:
            if isinstance(callback, ProgressCallback) and callback.training_bar is not None:
                callback.training_bar.set_postfix_str(f"{values['power_w']:.0f} W{total}", refresh=False)


def read_energy_state(checkpoint_folder: Path) -> Any:
    """Return the state in a checkpoint; an empty object if there is none."""
    try:
        return json.loads((checkpoint_folder / _FILE_NAME).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        _logger.warning("%s in %s cannot be read: %s", _FILE_NAME, checkpoint_folder, error)
        return {}


def write_energy_state(checkpoint_folder: Path, state: Any) -> None:
    """Write the state into a checkpoint, if its folder exists."""
    if not checkpoint_folder.is_dir():
        return
    try:
        # It lasts as the other files of the checkpoint do: training does not wait for the disk.
        write_atomically(checkpoint_folder / _FILE_NAME, json.dumps(state) + "\n", is_lasting=False)
    except OSError as error:
        _logger.warning("%s cannot be written into %s: %s", _FILE_NAME, checkpoint_folder, error)


def _tokens_seen_by(trainer: Trainer) -> int:
    """Return the tokens TRL has counted, or the Trainer itself."""
    return int(getattr(trainer, "_total_train_tokens", 0)) or int(trainer.state.num_input_tokens_seen)


def _results_of_evaluation(logs: Mapping[str, Any]) -> dict[str, float]:
    """Return what an evaluation found, without what it took."""
    cost = ("epoch", "_runtime", "_time", "_per_second", "_energy_j")
    return {name: value for name, value in logs.items() if isinstance(value, float) and not name.endswith(cost)}
