"""What the checkpoints of `accelerator.save_state` keep of the energy of their run."""

from __future__ import annotations

import logging
from pathlib import Path

from accelerate import Accelerator

from zeus_core.events import Activity
from zeus_core.ports import World
from zeus_core.training import TrainingEnergy
from zeus_huggingface._checkpoint import read_energy_state, write_energy_state

__all__ = ["put_into", "take_up_from"]

_logger = logging.getLogger(__name__)


def put_into(folder: str, energy: TrainingEnergy, step: int, accelerator: Accelerator) -> None:
    """Put what is known after an optimizer step into a checkpoint that is being saved."""
    state = energy.state_dict()
    if state and accelerator.is_main_process:
        write_energy_state(Path(folder), {**state, "step": step})


def take_up_from(folder: str, energy: TrainingEnergy, world: World, accelerator: Accelerator) -> int | None:
    """Take up the run of a checkpoint that is being loaded: a collective call.

    Returns:
        The optimizer step of the checkpoint; None if it does not tell, in which case the present run goes on.

    Raises:
        WorldError: A rank did not answer in time.
    """
    state = read_energy_state(Path(folder)) if accelerator.is_main_process else None
    state = world.gather(state)[0]  # all processes decide alike, also where one cannot read the file
    step = state.get("step") if isinstance(state, dict) else None
    if not isinstance(step, int):
        _logger.warning("%s says nothing of energy: what was spent before it is not part of the totals", folder)
        return None
    energy.on_train_end()
    energy.load_state_dict(state)
    energy.on_train_begin(step)
    energy.on_pause(Activity.CHECKPOINT)  # which is still going on
    return step
