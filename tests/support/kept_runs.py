"""Trainings on a simulated GPU that leave the file of their run, interrupted as often as one likes."""

from __future__ import annotations

import random
from pathlib import Path

from zeus_core.device import SimulatedGpu, Work, find_preset
from zeus_core.device.cpu import CpuDiscovery
from zeus_core.monitor import ZeusMonitor
from zeus_core.testing import VirtualTime
from zeus_core.training import TrainingEnergy

__all__ = ["interrupted_run", "kept_run"]

NO_CPUS = CpuDiscovery((), "not part of this test")
STEP = Work(0.5, 484.9, 0.938, 0.744)


def _gpu_and_monitor(model: str = "A100-SXM4-80GB") -> tuple[SimulatedGpu, ZeusMonitor]:
    time_source = VirtualTime()
    time_source.set_clock(1_772_409_600.0)
    gpu = SimulatedGpu(find_preset(model), time_source=time_source)
    return gpu, ZeusMonitor(gpus=[gpu], cpus=NO_CPUS, time_source=time_source)


def kept_run(
    folder: Path,
    *,
    seed: int = 0,
    factor: float = 1.0,
    model: str = "A100-SXM4-80GB",
    steps: int = 40,
    parameters: int = 0,
    ends_by: BaseException | None = None,
) -> Path:
    """Train, with steps whose work scatters by 1 %, and return the folder.

    Args:
        folder: The output folder.
        seed: Of the scatter.
        factor: The work of a step over the usual one.
        model: The model of the GPU.
        steps: The steps.
        parameters: The size of the model, as an adapter tells it; not told if 0.
        ends_by: An exception that ends the training after its steps.
    """
    randomness = random.Random(seed)
    gpu, monitor = _gpu_and_monitor(model)
    energy = TrainingEnergy(monitor, folder=folder, quiet=True)
    if parameters:
        energy.use_work({"parameters": parameters})
    with energy:
        for _ in range(steps):
            with energy.step(samples=4, tokens=512):
                gpu.execute(_scattered(factor * randomness.gauss(1.0, 0.01)))
        if ends_by is not None:
            raise ends_by
    return folder


def _scattered(factor: float) -> Work:
    return Work(STEP.seconds * factor, STEP.active_power_watts, STEP.active_fraction, STEP.compute_bound_fraction)


def interrupted_run(folder: Path, seed: int, kills: int = 5) -> float:
    """Train with a kill now and then, at any moment; return the true energy of all processes, in joules.

    Checkpoints are saved and logs made every few steps; each process is resumed at the latest checkpoint.
    """
    randomness = random.Random(seed)
    gpu, monitor = _gpu_and_monitor()
    period, log_period = randomness.randint(5, 12), randomness.randint(1, 5)
    step, state, truth = 0, None, 0.0
    for part in range(kills + 1):
        last = part == kills
        energy = TrainingEnergy(monitor, folder=folder, quiet=True)
        energy.load_state_dict(state or {})
        begin_joules = gpu.exact_energy_joules()
        energy.on_train_begin(step)
        until, now, seconds = step + randomness.randint(1, 25), step, randomness.random()
        while now < until or (state is None and not last):
            energy.on_step_begin()
            gpu.execute(_scattered(randomness.gauss(1.0, 0.05)))
            energy.on_step_end()
            energy.count(samples=4)
            now += 1
            if now % log_period == 0:
                energy.log()
            if now % period == 0:
                state, step = energy.state_dict(), now
        if last:
            energy.finish()
            energy.on_train_end()
        else:
            gpu.execute(_scattered(0.05 + seconds))  # killed within a step
        truth += gpu.exact_energy_joules() - begin_joules
        energy._recorder._split.stop()  # as the end of the process does
        monitor.time_source.advance(randomness.uniform(1.0, 100.0))  # before the next process: no part of the training
    return truth
