"""The pictures of the documentation, drawn by the package itself from simulated GPUs in virtual time.

    python tools/pictures.py    # writes that of the README, docs/pictures; the site draws the others as it is built

Each is drawn twice, `NAME.svg` for light pages and `NAME-dark.svg` for dark ones. Needs matplotlib.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[1]
OF_README = ROOT / "docs" / "pictures"

_MODEL = "A100-SXM4-80GB"
_STAGES, _MICROBATCHES = 4, 8
_CYCLES = 100
_SAMPLE_SECONDS = 0.047  # no sample at the end of an activity, where the GPU does nothing for a moment


def draw_all(folder: Path) -> None:
    """Draw the pictures of the pages into a folder, and a report page."""
    folder.mkdir(parents=True, exist_ok=True)
    both(folder / "time-energy.svg", time_energy(folder))
    frontier, timelines = pipeline()
    both(folder / "frontier.svg", frontier)
    both(folder / "timeline.svg", timelines)
    both(folder / "cycle.svg", cycle())


@patch.dict(os.environ, SOURCE_DATE_EPOCH="0")  # the same file each time, with the date of 1970
def both(path: Path, draw: Callable[[Path], None]) -> None:
    """Draw for light and for dark pages."""
    import matplotlib as mpl
    from matplotlib.style import context

    mpl.rcParams["svg.hashsalt"] = "zeus-core"
    draw(path)
    with context("dark_background", after_reset=False):
        mpl.rcParams["figure.facecolor"] = mpl.rcParams["axes.facecolor"] = mpl.rcParams["savefig.facecolor"] = (
            "#1e2129"
        )
        draw(path.with_stem(f"{path.stem}-dark"))


def time_energy(folder: Path) -> Callable[[Path], None]:
    """Search a limit on a simulated GPU; write the report on the training, and return what draws its trials."""
    from zeus_core.cli import main as zeus_core
    from zeus_core.device import SimulatedGpu, Work, find_preset
    from zeus_core.device.cpu import CpuDiscovery
    from zeus_core.monitor import ZeusMonitor
    from zeus_core.optimizer.power_limit import EnergyWithin, GlobalPowerLimitOptimizer
    from zeus_core.search import GridSearch
    from zeus_core.testing import VirtualTime
    from zeus_core.training import Activity, TrainingEnergy

    time_source = VirtualTime()
    time_source.set_clock(1_795_737_600.0)
    gpu = SimulatedGpu(find_preset(_MODEL), time_source=time_source)
    monitor = ZeusMonitor(gpus=[gpu], cpus=CpuDiscovery((), "not simulated"), time_source=time_source)
    work = Work(seconds=0.5, active_power_watts=484.9, active_fraction=0.938, compute_bound_fraction=0.744)
    search = GlobalPowerLimitOptimizer(monitor, EnergyWithin(factor=1.1), search=GridSearch, profile_steps=20)
    kept = folder / "runs" / "a100"
    with TrainingEnergy(monitor, search, folder=kept, quiet=True) as energy:
        for step in range(1000):
            with energy.step(samples=8, tokens=8192):
                gpu.execute(work)
            if step % 400 == 399:
                with energy.during(Activity.EVALUATION):
                    gpu.execute(Work(20.0, 300.0))
    zeus_core(["report", str(kept), "--output", str(folder / "report.html")])
    title = f"{_MODEL}, simulated"
    chosen = EnergyWithin(factor=1.1).select(search.measurements)  # the run has spent its slack on the trials
    return lambda path: _draw_trials(path, search.trials, chosen, title)


def _draw_trials(path: Path, trials: Sequence[Any], chosen: int, title: str) -> None:
    """Draw time and energy per step at each limit, with the intervals that hold the energies."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, NullFormatter, StrMethodFormatter

    from zeus_core.search.comparison import energy_error_fraction

    axes = Figure(figsize=(7, 5), layout="constrained").add_subplot(title=title)
    trials = sorted(trials, key=lambda trial: -trial.setting)
    seconds, joules = ([getattr(trial, f"{unit}_per_step") for trial in trials] for unit in ("seconds", "joules"))
    errors = [trial.joules_per_step * energy_error_fraction(trial) for trial in trials]
    colors = {"color": "#4477aa", "ecolor": "#bbbbbb"}
    axes.errorbar(seconds, joules, errors, fmt="o-", capsize=3, label="measured, with its interval", **colors)
    for trial, point in zip(trials, zip(seconds, joules, strict=True), strict=True):
        axes.annotate(f"{trial.setting} W", point, (7, 6), textcoords="offset points", fontsize=8)
        if trial.setting == chosen:
            axes.plot(*point, "o", markersize=14, fillstyle="none", color="#cc3311", label="chosen")
    axes.margins(x=0.15)  # room for the labels
    axes.legend()
    axes.set_xscale("log")  # the lowest limits take several times as long
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.set(xlabel="time per step (s)", ylabel="energy per step (J)")
    axes.grid(alpha=0.3)
    axes.figure.savefig(path)


def pipeline() -> tuple[Callable[[Path], None], Callable[[Path], None]]:
    """Plan a pipeline of simulated GPUs; return what draws its frontier, and its timeline before and after."""
    from zeus_core.device import Work, find_preset
    from zeus_core.pipeline import Frontier, PipelineProfile, baselines, make_plan, schedules
    from zeus_core.pipeline.pictures import draw_frontier, draw_timelines
    from zeus_core.pipeline.planner.clock_options import MeasuredOption
    from zeus_core.pipeline.planner.pipeline_profile import InstructionProfile

    preset = find_preset(_MODEL)
    instructions = []
    for stage, share in enumerate((1.0, 0.9, 0.95, 0.8)[:_STAGES]):
        for kind, seconds in (("forward", 0.1 * share), ("backward", 0.2 * share)):
            options = []
            for clock in range(preset.highest_clock_mhz, 600, -90):
                work = Work(seconds, 400.0, 1.0, 0.744)
                point = preset.physics.operating_point(work, 400.0, clock / preset.highest_clock_mhz)
                options.append(MeasuredOption(clock, point.seconds, point.energy_joules))
            instructions.append(InstructionProfile(stage, kind, tuple(options)))
    profile = PipelineProfile(instructions, preset.physics.blocking_power_watts)
    frontier = Frontier.from_profile(profile, schedules.one_f_one_b(_STAGES, _MICROBATCHES))
    plans = [baselines.highest_clocks_plan(frontier.problem), make_plan(frontier, slowdown_factor=1.0)]
    return (
        lambda path: draw_frontier(frontier, plans, path),
        lambda path: draw_timelines(profile, plans, path),
    )


def cycle() -> Callable[[Path], None]:
    """Train with a clock for each activity; return what draws the first and the latest cycle."""
    from zeus_core.device import SimulatedGpu, Work, find_preset
    from zeus_core.device.cpu import CpuDiscovery
    from zeus_core.monitor import ZeusMonitor
    from zeus_core.optimizer import EnergyWithin, GlobalClockOptimizer
    from zeus_core.testing import VirtualTime
    from zeus_core.training import TrainingEnergy

    # Of a GRPO step on an H100: decoding draws far less than the limit, and hardly depends on the clock.
    works = {"generation": Work(6.0, 300.0, 1.0, 0.05), "reward": Work(1.5, 450.0, 1.0, 0.5)}
    step = Work(4.0, 640.0, 1.0, 0.85)
    time_source = VirtualTime()
    gpu = SimulatedGpu(find_preset("H100"), time_source=time_source)
    monitor = ZeusMonitor(gpus=[gpu], cpus=CpuDiscovery((), "not simulated"), time_source=time_source)
    own = {"activities": "each", "changes_per_hour": 2000, "max_steps": _CYCLES}
    search = GlobalClockOptimizer(monitor, EnergyWithin(1.02), **own)
    samples: list[tuple[float, float, float]] = []
    began: list[tuple[str, float]] = []

    def sample() -> None:
        samples.append((time_source.now() - began[0][1], gpu.read_sm_clock_mhz(), gpu.read_power_watts()))

    cycles = []
    with TrainingEnergy(monitor, search, quiet=True) as energy:
        for _ in range(_CYCLES):
            began[:], samples[:] = [("generation", time_source.now())], []
            stop = time_source.repeatedly(sample, _SAMPLE_SECONDS)
            for name, work in works.items():
                with energy.during(name):
                    gpu.execute(work)
                began.append(("reward" if name == "generation" else "step", time_source.now()))
            with energy.step():
                gpu.execute(step)
            stop()
            marks = [(name, at - began[0][1]) for name, at in [*began, ("", time_source.now())]]
            cycles.append((list(samples), marks))
    return lambda path: _draw_cycles(path, cycles[0], cycles[-1])


def _draw_cycles(path: Path, first: Any, latest: Any) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.2), layout="constrained")
    axes = figure.subplots(2, 1, sharex=True)
    for place, (label, column) in enumerate((("SM clock [MHz]", 1), ("power [W]", 2))):
        for (samples, _), name, color in ((first, "first cycle", "tab:gray"), (latest, "latest cycle", "tab:blue")):
            axes[place].plot([row[0] for row in samples], [row[column] for row in samples], color=color, label=name)
        axes[place].set_ylabel(label)
        axes[place].set_ylim(0, 1.1 * max(row[column] for row in first[0]))
    marks = latest[1]
    for (name, begin), (_, end) in pairwise(marks):
        for one in axes:
            one.axvspan(begin, end, alpha=0.12, color={"generation": "tab:green", "reward": "tab:orange"}.get(name))
        axes[0].text((begin + end) / 2, 60, name, ha="center")
    axes[1].set_xlabel("seconds of a cycle")
    axes[1].legend(loc="lower right")
    figure.savefig(path)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    import tempfile

    with tempfile.TemporaryDirectory() as made:
        OF_README.mkdir(exist_ok=True)
        both(OF_README / "time-energy.svg", time_energy(Path(made)))
