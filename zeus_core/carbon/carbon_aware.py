"""The electricity and the deadline of a training: one argument of an optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from zeus_core.carbon._decision import signal_name
from zeus_core.carbon._terms import Terms

if TYPE_CHECKING:  # the command of this wing shows its help without what measures
    from zeus_core.monitor import ZeusMonitor
    from zeus_core.optimizer.global_setting.director import Director
    from zeus_core.ports.exchange import Exchange


class CarbonAware(Terms):
    """Has a training run hard, softly or not at all, by the carbon intensity or the price of electricity.

    Pass it to an optimizer: `GlobalPowerLimitOptimizer(monitor, carbon_aware=CarbonAware(signal, deadline=...))`. Once
    the search is over, each interval the settings that it has measured and a pause are weighed against each other; see
    `WorkController`. The optimizer must know `max_steps`. Without the right to change a setting, training still pauses.

    Args:
        signal: The intensity, or the price.
        deadline: When training must be done: a `datetime` with a zone, or seconds since 1970 (Unix time).
        max_slowdown: In place of a deadline, how much longer than at its original setting training may take from its
            begin to its end, such as 1.3. Pauses count.
        budget: At most so many grams of CO2 equivalent, or so much money, for the energy of the GPUs. Without a
            deadline, training is as quick as that allows. When it is spent, the process ends as for a long pause.
        may_pause: Whether training may pause. A pause begins between two steps, on all ranks.
        idle_watts: The power of all GPUs of the job together in a pause. If None it is read before training begins,
            and measured in each pause.
        interval_seconds: The time between decisions.
        checkpoint: Called on all ranks before a pause. The Trainer of transformers saves its checkpoint by itself.
        exit_from_seconds: A pause that is expected to last so long ends the process, with exit code 75 (`EX_TEMPFAIL`:
            try again later), after it has written `resume_path`. If None, every pause is waited out in place.
        resume_path: JSON file from which a scheduler reads when to start the training again.

    Raises:
        UsageError: An argument is wrong; the message names it.
    """

    @property
    def rule(self) -> str:
        """The quantity that training follows, in words."""
        return f"the {signal_name(self.signal)}"

    def director(self, monitor: ZeusMonitor, exchange: Exchange, resumed: Mapping[str, Any]) -> Director:
        """Make what directs a training; an optimizer calls this. See `Directive.director`."""
        from zeus_core.carbon.follower import Follower  # needs numpy

        return Follower(self, monitor, exchange, resumed)
