"""The outcome of the example: what was measured, what was planned, and how much was saved."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import fmean, median
from typing import Any

from zeus_core.device import SimulatedGpu, Work
from zeus_core.pipeline import PipelineProfile

Gather = Callable[[Any], list[Any]]


class StepLog:
    """The time and the true energy of each step of one rank, and how far training has come.

    Args:
        gpu: The rank's GPU; a simulated one reports its exact energy.
        is_shown: Whether to print a line when a phase begins.
    """

    def __init__(self, gpu: SimulatedGpu, is_shown: bool) -> None:
        self._gpu = gpu
        self._is_shown = is_shown
        self._begin_seconds = time.monotonic()
        self._steps: list[tuple[str, float, float]] = []
        self.losses: list[float] = []

    @contextmanager
    def step(self, phase: str) -> Iterator[None]:
        begin_seconds, begin_joules = time.monotonic(), self._gpu.exact_energy_joules()
        if self._is_shown and (not self._steps or self._steps[-1][0] != phase):
            print(
                f"{begin_seconds - self._begin_seconds:6.1f} s  step {len(self._steps) + 1:3}  {phase}",
                flush=True,
            )
        yield
        joules = self._gpu.exact_energy_joules() - begin_joules
        self._steps.append((phase, time.monotonic() - begin_seconds, joules))

    def latest(self, phase: str) -> tuple[float, float]:
        """Return the median time in seconds and the mean energy in joules of the steps in a phase's latest run."""
        runs = [list(run) for of_run, run in groupby(self._steps, key=lambda step: step[0]) if of_run == phase]
        _, seconds, joules = zip(*runs[-1], strict=True)
        return median(seconds), fmean(joules)


@dataclass(frozen=True)
class Cost:
    """Time and energy of an iteration: seconds, and joules of all GPUs."""

    seconds: float
    joules: float

    def __str__(self) -> str:
        return f"{self.seconds:.3f} s and {self.joules:.1f} J per iteration"


@dataclass(frozen=True)
class Outcome:
    """Results of all ranks, gathered at the end."""

    profile: PipelineProfile | None  # None with a plan of an earlier run, which needs none
    planned_from: PipelineProfile | None  # with the options between measured clocks
    microbatches: int
    clocks_mhz: Mapping[int, Sequence[int | None]]  # of each stage, in the order it runs its instructions
    before: Cost
    predicted: Cost
    after: Cost
    true_before: Cost
    true_after: Cost
    losses: Sequence[float]

    @property
    def saving_fraction(self) -> float:
        return 1 - self.after.joules / self.before.joules

    @property
    def slowdown_factor(self) -> float:
        return self.after.seconds / self.before.seconds

    def __str__(self) -> str:
        true_saving = 1 - self.true_after.joules / self.true_before.joules
        lines = [
            *self._profile_lines(),
            "\nThe plan: the clock (MHz) of each instruction, in order",
            *self._plan_lines(),
            f"\nbefore:    {self.before}",
            f"predicted: {self.predicted}",
            f"after:     {self.after}",
            f"truth:     {self.true_before.joules:.1f} J before and {self.true_after.joules:.1f} J after, by the exact "
            f"energy of the simulated GPUs: saving {true_saving:.1%}",
            f"loss:      {self.losses[0]:.2f} at first, {self.losses[-1]:.2f} at the end",
        ]
        return "\n".join(lines)

    def _profile_lines(self) -> Iterator[str]:
        if self.profile is None:
            return
        yield "\nMeasured during training, at the highest clock and at the clock of minimum energy"
        for instruction in self.profile.instructions:
            options = instruction.at_highest_clock, min(instruction.options, key=lambda option: option.energy_joules)
            yield (
                f"stage {instruction.stage} {instruction.kind:9} "
                + "   ".join(map(_formatted, options))
                + f"   ({len(instruction.options)} clocks)"
            )

    def _plan_lines(self) -> Iterator[str]:
        for rank, clocks in sorted(self.clocks_mhz.items()):
            runs = [(clock, len(list(run))) for clock, run in groupby(clocks)]
            yield f"rank {rank}: " + ", ".join(
                f"{clock}" if count == 1 else f"{count} x {clock}" for clock, count in runs
            )

    def write(self, path: Path) -> Path:
        """Write the profile, for `zeus-core plan`."""
        path.write_text(json.dumps(self.planned_from.to_json()))
        return path


def _formatted(option: Any) -> str:
    return f"{option.clock_mhz:4} MHz {option.time_seconds * 1e3:6.1f} ms {option.energy_joules:6.2f} J"


def gather_outcome(engine: Any, log: StepLog, gather: Gather) -> Outcome | None:
    """Gather the outcome of the first pipeline on all ranks; None if no plan was measured."""
    optimizer = engine.perseus.optimizer
    baseline, predicted, measured = optimizer.baseline, optimizer.predicted, optimizer.measured
    if measured is None or baseline.energy_joules is None or measured.energy_joules is None:
        return None
    told = gather([engine.stage_id, optimizer.clocks_mhz, log.latest("baseline"), log.latest("replaying")])
    stages, clocks, *truths = zip(*told, strict=True)
    return Outcome(
        profile=optimizer.profile(),
        planned_from=optimizer.profile(interpolated=True),
        microbatches=engine.gradient_accumulation_steps(),
        clocks_mhz=dict(zip(stages, clocks, strict=True)),
        before=Cost(baseline.step_seconds, baseline.energy_joules),
        predicted=Cost(predicted.step_seconds, predicted.energy_joules),
        after=Cost(measured.step_seconds, measured.energy_joules),
        true_before=_of_all_ranks(truths[0]),
        true_after=_of_all_ranks(truths[1]),
        losses=log.losses,
    )


def _of_all_ranks(costs: Sequence[tuple[float, float]]) -> Cost:
    seconds, joules = zip(*costs, strict=True)
    return Cost(max(seconds), sum(joules))


def clock_under_load_mhz(gpu: SimulatedGpu) -> int:
    """Return the clock under load, in MHz: the highest, unless it is locked."""
    gpu.submit(Work(seconds=1.0, active_power_watts=300.0))  # longer than a busy machine takes to read the clock
    clock_mhz = gpu.read_sm_clock_mhz()
    gpu.synchronize()
    return clock_mhz
