"""The picture of docs/clock.md: a cycle of a training whose activities have clocks of their own, simulated.

    python tools/cycle_picture.py    # writes docs/pictures/cycle.svg, and cycle-dark.svg for dark pages

Needs matplotlib.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_CYCLES = 150
_SAMPLE_SECONDS = 0.047  # no sample at the end of an activity, where the GPU does nothing for a moment


def cycle() -> Callable[[Path], None]:
    """Train on a simulated GPU; return what draws its first and its latest cycle."""
    from zeus_core.device import CpuDiscovery, SimulatedGpu, Work, find_preset
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
    return lambda path: _draw(path, cycles[0], cycles[-1])


def _draw(path: Path, first: Any, latest: Any) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.2), layout="constrained")
    axes = figure.subplots(2, 1, sharex=True)
    for place, (label, column) in enumerate((("SM clock [MHz]", 1), ("power [W]", 2))):
        for (samples, _), name, color in ((first, "first cycle", "tab:gray"), (latest, "latest cycle", "tab:blue")):
            axes[place].plot([row[0] for row in samples], [row[column] for row in samples], color=color, label=name)
        axes[place].set_ylabel(label)
        axes[place].set_ylim(0)
    marks = latest[1]
    for (name, begin), (_, end) in pairwise(marks):
        for one in axes:
            one.axvspan(begin, end, alpha=0.12, color={"generation": "tab:green", "reward": "tab:orange"}.get(name))
        axes[0].text((begin + end) / 2, 60, name, ha="center")
    axes[1].set_xlabel("seconds of a cycle")
    axes[1].legend(loc="lower right")
    figure.savefig(path)


def main() -> None:
    """Draw it for light and for dark pages."""
    import matplotlib as mpl
    from matplotlib.style import context

    folder = ROOT / "docs" / "pictures"
    folder.mkdir(exist_ok=True)
    draw = cycle()
    mpl.rcParams["svg.hashsalt"] = "zeus-core"  # the same file each time
    draw(folder / "cycle.svg")
    with context("dark_background"):
        mpl.rcParams["savefig.facecolor"] = mpl.rcParams["axes.facecolor"] = "#1e2129"
        draw(folder / "cycle-dark.svg")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
