"""The metrics of a training run: one registry of names, units and meanings."""

from __future__ import annotations

from typing import NamedTuple

from zeus_core.events import Activity
from zeus_core.units import number_text


class Metric(NamedTuple):
    """A metric that is logged. A value that was not measured is left out, never logged as 0.

    Attributes:
        name: Its name, without the prefix of a framework.
        unit: Its unit; empty for a fraction.
        meaning: One phrase for people.
    """

    name: str
    unit: str
    meaning: str


class LoggedValues(dict[str, float]):
    """Values by name. Printed, they have three digits; they are exact otherwise."""

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{name!r}: {number_text(value)}" for name, value in self.items()) + "}"


LOG_METRICS = (
    Metric("energy_j", "J", "training steps since the previous log, over all ranks and GPUs"),
    Metric("power_w", "W", "mean power of these steps"),
    Metric("energy_per_token_j", "J", "energy per token, if tokens are counted"),
    Metric("energy_per_sample_j", "J", "energy per sample, if samples are counted and tokens are not"),
    Metric("total_energy_j", "J", "the whole run so far, with evaluations, checkpoints and earlier parts"),
    Metric("power_limit_w", "W", "power limit in force, the highest of this rank's GPUs, as of the last second"),
    Metric("sm_clock_mhz", "MHz", "SM clock that the optimizer has locked, if it searches clocks"),
    Metric("co2_eq_g", "g", "CO2 equivalent of the whole run so far, if an intensity is given"),
    Metric("cost", "money", "cost of the whole run so far, in the currency of the price, if one is given"),
)
"""Logged during training."""

EVALUATION_METRICS = (Metric("eval_energy_j", "J", "evaluations since the previous one that was logged"),)
"""Logged after an evaluation; other evaluations have another prefix than `eval`."""

_ACTIVITIES = {
    Activity.STEPS: "training steps, with data loading and logging",
    Activity.GENERATION: "text generated for training",
    Activity.WAITING: "waiting for text that a server generates for training",
    Activity.REFERENCE: "passes of a reference model",
    Activity.REWARD: "passes of reward models",
    Activity.EVALUATION: "evaluations",
    Activity.PREDICTION: "predictions",
    Activity.CHECKPOINT: "checkpoints",
    Activity.OTHER: "activities of your own beyond the first 32",
    Activity.BETWEEN_STEPS: "long times between two steps that nothing announced",
    Activity.IDLE: "everything else between the beginning and the end",
}

SUMMARY_METRICS = (
    Metric("train_energy_j", "J", "the whole run, with evaluations, checkpoints and earlier parts"),
    Metric("train_energy_wh", "Wh", "the same"),
    Metric("train_energy_uncertainty_j", "J", "uncertainty of the energy of the whole run"),
    *(Metric(f"train_energy_{activity.value}_j", "J", _ACTIVITIES[activity]) for activity in Activity),
    Metric("train_energy_per_token_j", "J", "energy of the training steps by token, if tokens are counted"),
    Metric("train_energy_per_generated_token_j", "J", "energy of the text generated for training by token, if known"),
    Metric("train_energy_per_reward_j", "J", "energy of a pass of reward models on one rank"),
    Metric("train_energy_redone_j", "J", "steps that were repeated after an interruption"),
    Metric("train_energy_saving_fraction", "", "energy per step saved by the chosen power limit or SM clock"),
    Metric("train_energy_saving_uncertainty", "", "how far that saving can be off"),
    Metric("train_energy_overhead_s", "s", "time spent in the hooks of this package"),
    Metric("train_host_energy_j", "J", "CPUs and their memory, where they are measured, if `electricity` is given"),
    Metric("train_co2_eq_g", "g", "CO2 equivalent of GPUs, CPUs and memory, if an intensity is given"),
    Metric("train_co2_eq_uncertainty_g", "g", "how far that can be off, if the intensity is right"),
    Metric("train_co2_eq_stale_fraction", "", "share of the energy for which only the mean intensity was known"),
    Metric("train_cost", "money", "cost of the same energy, in the currency of the price, if one is given"),
    Metric("train_cost_uncertainty", "money", "how far that can be off, if the price is right"),
    Metric("train_cost_stale_fraction", "", "share of the energy for which only the mean price was known"),
)
"""Logged at the end of training; and the like of activities of your own, such as `train_energy_per_rollout_j`."""
