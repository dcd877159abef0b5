"""Cost of following a pipeline, per instruction and per exchange of the ranks.

Prints the time that the tap of DeepSpeed adds to an instruction, over an instruction of the engine's own loop that does
nothing; the time of the optimizer's hooks while a plan is replayed, where the clock stays and where it changes in every
instruction; and both over an instruction of 10 ms. The driver is called by other threads, as in a training, which does
not wait for them: what all threads compute together stands beside, over the same without an optimizer. Exits with 1
beyond the limits below.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from types import MethodType
from typing import Any, ClassVar

from zeus_core.device import SimulatedGpu, Work, find_preset
from zeus_core.monitor import ZeusMonitor
from zeus_core.pipeline import PipelineFrequencyOptimizer, PipelineFrequencySettings, PipelineRank
from zeus_core.pipeline.optimizer.frequency_phases import PlanningPhase
from zeus_core.ports.background import ThreadBackground
from zeus_core.testing import VirtualBackground, VirtualTime

LARGEST_TAP_SECONDS = 5e-6
LARGEST_HOOK_FRACTION = 0.005
INSTRUCTION_SECONDS = 0.01
LARGEST_CPU_FRACTION = 0.02  # of one core
# The GPU works and the training thread waits: long enough for the other threads to set a clock meanwhile.
COMPUTE_SECONDS = 0.001
MICROBATCHES = 1000


def best_of(action: Callable[[], object], rounds: int = 15) -> float:
    """Return the seconds of one call in the quickest of some rounds: other processes can only add time."""
    seconds = []
    for _ in range(rounds):
        begin = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


class NoPipelineObserver:
    """Is told, and does nothing."""

    def on_step_begin(self) -> None: ...

    on_step_end = on_resume = close = on_step_begin

    def on_instruction_begin(self, name: str, stage: int | None = None, microbatch: int | None = None) -> None: ...

    def on_instruction_end(self, name: str) -> None: ...

    def on_pause(self, activity: object = None) -> None: ...


COMMANDS = [
    type(name, (), {})
    for name in (
        *("ForwardPass", "BackwardPass", "SendActivation", "RecvActivation", "SendGrad", "RecvGrad"),
        *("ReduceTiedGrads", "ReduceGrads", "OptimizerStep", "LoadMicroBatch"),
    )
]


class Engine:
    """The loop of a `PipelineEngine`, around instructions that do nothing."""

    _INSTRUCTION_MAP: ClassVar[dict[type, Callable[..., None]]] = {
        command: lambda self, buffer_id: None for command in COMMANDS
    }
    stage_id, num_stages = 0, 2

    def _exec_schedule(self, schedule: list[Any]) -> None:
        for command in schedule:
            self._exec_instr = MethodType(self._INSTRUCTION_MAP[command], self)
            self._exec_instr(buffer_id=0)

    def train_batch(self, schedule: list[Any]) -> None:
        self._exec_schedule(schedule)

    eval_batch = save_checkpoint = load_checkpoint = destroy = train_batch


class Schedule(list[Any]):
    """The forward passes of an iteration."""


def tap_costs() -> tuple[float, float]:
    """Return the seconds per instruction of the bare loop, and those that the tap adds."""
    from zeus_deepspeed._engine import PipelineTap

    schedule = Schedule([COMMANDS[0]] * MICROBATCHES)
    bare = best_of(lambda: Engine().train_batch(schedule)) / MICROBATCHES
    engine = Engine()
    PipelineTap(engine, NoPipelineObserver())
    return bare, best_of(lambda: engine.train_batch(schedule)) / MICROBATCHES - bare


class LateBackground(VirtualBackground):
    """Runs actions at once while a plan is made, and in a thread of its own once `thread` is there."""

    thread: ThreadBackground | None = None

    def soon(self, action: Callable[[], object]) -> None:
        (super() if self.thread is None else self.thread).soon(action)


def hook_seconds(changes_clock: bool) -> tuple[float, float]:
    """Return the seconds in the hooks of an instruction of a plan, and those that all threads compute for them."""
    time_source = VirtualTime()
    gpu = SimulatedGpu(find_preset("A100-SXM4-80GB"), time_source=time_source)
    monitor = ZeusMonitor(gpus=[gpu], gpu_indices=[0], cpu_indices=[], time_source=time_source)
    settings = PipelineFrequencySettings(slowdown_factor=1.1, warmup_steps=1, check_steps=10_000, quiet=True)
    background = LateBackground(time_source)
    optimizer = PipelineFrequencyOptimizer(monitor, PipelineRank(0), settings, make_background=lambda: background)
    work = {"forward": Work(0.05, 300.0), "backward": Work(0.1, 300.0)}

    def step(compute: Callable[[str], object]) -> float:
        """Return the seconds in the hooks of the instructions."""
        seconds = 0.0
        optimizer.on_step_begin()
        for kind in work:
            for _ in range(8):
                begin = time.perf_counter()
                optimizer.on_instruction_begin(kind)
                seconds += time.perf_counter() - begin
                compute(kind)
                begin = time.perf_counter()
                optimizer.on_instruction_end(kind)
                seconds += time.perf_counter() - begin
        optimizer.on_step_end()
        return seconds

    while optimizer.phase is not PlanningPhase.REPLAYING:
        step(lambda kind: gpu.execute(work[kind]))
    stage: Any = optimizer._course.stage
    background.thread = ThreadBackground()
    clocks = [1395 - 15 * (number % 2 if changes_clock else 0) for number in range(16)]
    stage._follower.follow(clocks)
    stage._follower._plan_requests([INSTRUCTION_SECONDS] * len(clocks), None)
    hooks, cpu = [], []
    for _ in range(100):
        begin = time.process_time()
        hooks.append(step(lambda kind: time.sleep(COMPUTE_SECONDS)) / 16)
        cpu.append((time.process_time() - begin) / 16)
    optimizer.close()
    return min(hooks), min(cpu) - bare_cpu_seconds()


def bare_cpu_seconds() -> float:
    """Return the seconds that an instruction computes by itself, here: to sleep and to wake."""
    cpu = []
    for _ in range(100):
        begin = time.process_time()
        for _ in range(16):
            time.sleep(COMPUTE_SECONDS)
        cpu.append((time.process_time() - begin) / 16)
    return min(cpu)


def main() -> int:
    logging.disable(logging.CRITICAL)
    bare, added = tap_costs()
    print(f"tap: {added * 1e6:.2f} us per instruction, {added / bare:.1f} times the bare loop of the engine")
    is_within = added <= LARGEST_TAP_SECONDS
    for changes_clock, what in ((False, "the clock stays"), (True, "the clock changes")):
        seconds, cpu_seconds = hook_seconds(changes_clock)
        fraction, cpu_fraction = (seconds + added) / INSTRUCTION_SECONDS, cpu_seconds / INSTRUCTION_SECONDS
        is_within = is_within and fraction <= LARGEST_HOOK_FRACTION and cpu_fraction <= LARGEST_CPU_FRACTION
        print(
            f"hooks while {what}: {seconds * 1e6:.2f} us; with the tap {fraction:.3%} of 10 ms (limit "
            f"{LARGEST_HOOK_FRACTION:.1%}); all threads compute {cpu_fraction:.2%} (limit {LARGEST_CPU_FRACTION:.1%})"
        )
    print("within the limits" if is_within else "beyond the limits")
    return 0 if is_within else 1


if __name__ == "__main__":
    sys.exit(main())
