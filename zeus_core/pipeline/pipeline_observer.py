"""The events of a pipeline's training, as a tap reports them to who receives them."""

from __future__ import annotations

from typing import Protocol

from zeus_core.events import Activity


class PipelineObserver(Protocol):
    """Receives what one rank of a training pipeline does, in order. No event raises.

    A step is one iteration: all microbatches, and the optimizer step. Within it, instructions do not nest.
    """

    def on_step_begin(self) -> None:
        """Report that an iteration begins."""
        ...

    def on_step_end(self) -> None:
        """Report that the iteration has ended."""
        ...

    def on_instruction_begin(self, name: str, stage: int | None = None, microbatch: int | None = None) -> None:
        """Report that an instruction begins.

        Args:
            name: Its kind: one of `zeus_core.pipeline.COMPUTE_KINDS`, `TRANSFER_KINDS`, "optimizer-step" or
                "all-reduce".
            stage: The stage it belongs to, for ranks that have several; the rank's only one if None.
            microbatch: The microbatch it works on; counted by stage and kind if None.
        """
        ...

    def on_instruction_end(self, name: str) -> None:
        """Report that the instruction that began last has ended."""
        ...

    def on_pause(self, activity: Activity = Activity.IDLE) -> None:
        """Report that work other than training is about to start, until `on_resume` or the next step."""
        ...

    def on_resume(self) -> None:
        """Report the end of the work that the latest `on_pause` announced."""
        ...

    def close(self) -> None:
        """Report that training has ended, normally or by an error."""
        ...
