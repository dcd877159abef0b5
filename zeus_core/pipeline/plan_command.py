"""`zeus-core plan`: plan the clocks of a training pipeline from a measured profile."""

from __future__ import annotations

import argparse
import contextlib
import csv
import importlib.util
import io
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from zeus_core.cli.arguments import check_exists, count, path, seconds, seconds_or_zero, slowdown
from zeus_core.cli.text import make_folder, write
from zeus_core.documents import parse_json
from zeus_core.errors import UsageError
from zeus_core.files import write_atomically
from zeus_core.installed import install_command
from zeus_core.units import duration_text, number_text
from zeus_core.validate import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeus_core.pipeline import Frontier, PipelineProfile
    from zeus_core.pipeline.planner.clock_plan import Plan
    from zeus_core.pipeline.planner.pipeline_schedule import Schedule

PLACE = "Before a run", 33
SUMMARY = "Plan the clocks of a training pipeline from a measured profile"
EXAMPLE = "zeus-core plan gpt3-like --slowdown 5%"

_Number = TypeVar("_Number", int, float)

_SCHEDULES = ("1f1b", "gpipe", "interleaved", "zb-h1", "zbv")

_EXAMPLE, _EXAMPLE_MICROBATCHES = Path("gpt3-like"), 8  # a profile made by formulas, not measured
_CLOCKS_MHZ = range(1410, 840, -15)
_SECONDS = {"forward": 0.050, "backward": 0.100}  # at the highest clock, of a stage of usual weight
_BOUND_BY_CLOCK = {"forward": 0.80, "backward": 0.75}  # the part of the time that falls with the clock
_IDLE_WATTS, _WORK_WATTS = 80.0, 330.0  # of a GPU that waits, and that works at the highest clock
# Layers do not divide evenly, the first stage also holds the embedding, and the last one the head.
_WEIGHTS = (1.02, 1.0, 1.0, 0.97, 1.0, 0.97, 1.0, 1.08)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "profile",
        type=path,
        help=f"CSV (stage,instruction,frequency,time,energy) or JSON; {_EXAMPLE} is an example made by formulas",
    )
    parser.add_argument(
        "--microbatches",
        type=count,
        metavar="N",
        help=f"microbatches of an iteration ({_EXAMPLE_MICROBATCHES} of the example)",
    )
    parser.add_argument(
        "--schedule",
        type=_schedule_of,
        default=("1f1b", 2),
        metavar="NAME",
        help=f"order of the instructions: {', '.join(_SCHEDULES)} (1f1b); interleaved:4 for four stages on a rank",
    )
    parser.add_argument(
        "--blocking-power",
        type=_powers,
        metavar="WATTS",
        help="power of a GPU that waits, for all stages or for each: 80 or 80,75; or a CSV file of lowtime "
        "(freq,time_ms,energy_mj); for CSV without `blocking` rows",
    )
    parser.add_argument(
        "--gpus", type=_counts, metavar="N", help="GPUs that share a stage, for all or for each: 4 or 4,8; for CSV (1)"
    )
    picked = parser.add_mutually_exclusive_group()
    picked.add_argument(
        "--slowdown", type=slowdown, metavar="10%", help="accepted time over the one at the highest clocks (0%%)"
    )
    picked.add_argument(
        "--straggler", type=seconds, metavar="SECONDS", help="time of another pipeline that this one waits for"
    )
    parser.add_argument(
        "--switch-seconds", type=seconds_or_zero, default=0.0, metavar="SECONDS", help="duration of a clock switch (0)"
    )
    parser.add_argument("--output", type=path, metavar="FOLDER", help="folder for frontier, plan and pictures")


def execute(arguments: argparse.Namespace) -> int:
    """Plan, print a comparison, and write the files."""
    if arguments.profile != _EXAMPLE:
        check_exists(arguments.profile, f"; give a profile, or {_EXAMPLE}, which is an example")
    if arguments.microbatches is None:
        if arguments.profile != _EXAMPLE:
            raise UsageError("--microbatches is missing, the microbatches of an iteration, such as --microbatches 24")
        arguments.microbatches = _EXAMPLE_MICROBATCHES
    if arguments.profile == _EXAMPLE:  # nobody waits for the imports in silence, and a fault in a file is one line
        _note(f"planning the example {_EXAMPLE}")
    from zeus_core.pipeline import Frontier, make_plan, write_plan
    from zeus_core.pipeline.planner.loops import has_compiler

    profile = _read_profile(arguments)
    schedule = _schedule(arguments, profile)
    _note(
        f"{schedule.name}: {profile.stages} stages on {len(schedule.ranks)} ranks, {len(schedule.instructions)} "
        "instructions an iteration; finding the frontier"
    )
    if not has_compiler():
        _note(f"without llvmlite 0.45 or newer this takes a hundred times as long: {install_command('pipeline')}")
    _warn_of_waiting(profile)
    frontier = Frontier.from_profile(profile, schedule, _Progress("frontier"))
    _note("the frontier is known; choosing clocks")
    plan = make_plan(
        frontier,
        straggler_seconds=arguments.straggler,
        slowdown_factor=arguments.slowdown or (None if arguments.straggler else 1.0),
        switch_seconds=arguments.switch_seconds,
    )
    plans = [*_baselines(frontier, plan), plan]
    if arguments.output is not None:
        try:
            make_folder(arguments.output)
            write_plan(plan, arguments.output / "plan.json")
            _write_frontier(frontier, arguments.output / "frontier.csv")
            _draw(arguments.output, frontier, plans)
        except OSError as error:
            raise UsageError(f"--output is {str(arguments.output)!r}, which cannot be written: {error}") from error
    write(_plan_table(plans, frontier), sys.stdout)
    write(
        f"The shortest iteration takes {duration_text(frontier.shortest_seconds)}, and the one of least energy "
        f"{duration_text(frontier.least_energy_seconds)}.",
        sys.stdout,
    )
    if arguments.output is not None:
        write(f"written to {arguments.output}", sys.stdout)
    return 0


def _plan_table(plans: Sequence[Plan], frontier: Frontier) -> str:
    """Return plans as a table, one a line, relative to the highest clocks, with the lowest energy for the same time."""
    seconds, joules = frontier.highest_clock_point
    lines = [
        f"{'plan':20} {'s/iteration':>12} {'J/iteration':>12} {'time':>8} {'energy':>8} {'at best':>8} {'switches':>9}"
    ]
    for plan in plans:
        bound = plan.bound_joules
        if bound is None:
            bound = float(frontier.energy_joules(max(plan.time_seconds, frontier.shortest_seconds)))
        slower, saved, best = plan.time_seconds / seconds - 1, plan.energy_joules / joules - 1, bound / joules - 1
        lines.append(
            f"{plan.name:20} {number_text(plan.time_seconds):>12} {number_text(plan.energy_joules):>12} "
            f"{slower:+8.2%} {saved:+8.2%} {best:+8.2%} {plan.switches:9d}"
        )
    return "\n".join(lines)


def _baselines(frontier: Frontier, plan: Plan) -> list[Plan]:
    """Return the plans to compare with, for the same time, without plans that need a clock in common and have none."""
    from zeus_core.pipeline import baselines

    problem = frontier.problem
    limit = max(plan.time_seconds, frontier.highest_clock_point[0])
    plans = [baselines.highest_clocks_plan(problem)]
    for make in (baselines.global_clock_plan, baselines.stage_clocks_plan):
        with contextlib.suppress(UsageError):  # no clock in common
            plans.append(make(problem, limit))
    return plans


def _read_profile(arguments: argparse.Namespace) -> PipelineProfile:
    from zeus_core.pipeline import PipelineProfile
    from zeus_core.pipeline.planner.pipeline_profile_csv import read_options
    from zeus_core.pipeline.planner.pipeline_schedule import BLOCKING_KIND

    file: Path = arguments.profile
    powers, gpus = arguments.blocking_power, _one_or_each(arguments.gpus or [1])
    if file == _EXAMPLE:
        if powers is not None:
            raise UsageError(f"--blocking-power is for CSV; {_EXAMPLE} has its own")
        return _example_profile(gpus)
    if file.suffix == ".json":
        for option, value in (("--blocking-power", powers), ("--gpus", arguments.gpus)):
            if value is not None:
                raise UsageError(f"{option} is for CSV; a JSON profile holds its own")
        try:
            return PipelineProfile.from_json(parse_json(file.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:  # a UsageError is a ValueError too
            raise UsageError(f"the profile {file} cannot be read: {error}") from error
    if powers is None and not any(kind == BLOCKING_KIND for _, kind in read_options(file)):
        raise UsageError(
            "a CSV profile without 'blocking' rows lacks the power of a GPU that waits; give --blocking-power, "
            "such as 80"
        )
    watts = _one_or_each(powers) if isinstance(powers, list) else powers
    return PipelineProfile.from_csv(file, watts, gpus)


def _one_or_each(values: list[_Number]) -> _Number | list[_Number]:
    return values[0] if len(values) == 1 else values


def _schedule(arguments: argparse.Namespace, profile: PipelineProfile) -> Schedule:
    from zeus_core.pipeline import schedules

    name, per_rank = arguments.schedule
    stages, microbatches = profile.stages, arguments.microbatches
    if name.startswith("zb") and profile.find(0, "backward-input") is None:
        raise UsageError(
            f"{name} runs each backward pass in two parts, but the profile has no 'backward-input' of stage 0: measure "
            "backward-input (gradients of activations) and backward-weight (gradients of weights) at each clock"
        )
    if name in ("1f1b", "gpipe", "zb-h1"):
        make = {"1f1b": schedules.one_f_one_b, "gpipe": schedules.gpipe, "zb-h1": schedules.zb_h1}[name]
        return make(stages, microbatches)
    if stages % per_rank:
        raise UsageError(f"the profile has {stages} stages, which {name} cannot divide as {per_rank} for each rank")
    if name == "zbv":
        return schedules.zbv(stages // per_rank, microbatches)
    return schedules.interleaved(stages // per_rank, microbatches, per_rank)


def _warn_of_waiting(profile: PipelineProfile) -> None:
    """Say so if a GPU would draw more while it waits than while it works: the numbers do not belong together."""
    from zeus_core.pipeline.planner.pipeline_schedule import COMPUTE_KINDS

    for each in profile.instructions:
        waiting_watts = profile.blocking_power_watts[each.stage]
        for option in each.options:
            watts = option.energy_joules / option.time_seconds
            if each.kind in COMPUTE_KINDS and watts < waiting_watts:
                _note(
                    f"warning: the blocking power, {waiting_watts:g} W, is above the power of the work, {watts:.1f} W "
                    f"({each} at {option.clock_mhz} MHz); waiting then seems dearer than work"
                )
                return


class _Progress:
    """Says at most once a second how far a computation is."""

    def __init__(self, name: str) -> None:
        self._name, self._due = name, time.monotonic() + 1.0

    def __call__(self, fraction: float) -> None:
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + 1.0
            _note(f"{self._name}: {fraction:.0%}")


def _note(text: str) -> None:
    write(f"zeus-core: {text}", sys.stderr)


def _write_frontier(frontier: Frontier, path: Path) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("time_seconds", "energy_joules"))
    writer.writerows(zip(frontier.times_seconds.tolist(), frontier.energies_joules.tolist(), strict=True))
    write_atomically(path, text.getvalue())


def _draw(folder: Path, frontier: Frontier, plans: list[Plan]) -> None:
    if importlib.util.find_spec("matplotlib") is None:
        write(f"no pictures: drawing needs matplotlib: {install_command('plot')}", sys.stdout)
        return
    from zeus_core.pipeline.pictures import draw_frontier, draw_timelines

    draw_frontier(frontier, plans, folder / "frontier.svg")
    draw_timelines(frontier.problem.profile, [plans[0], plans[-1]], folder / "timeline.svg")


def _schedule_of(text: str) -> tuple[str, int]:
    name, _, stages = text.partition(":")
    if name not in _SCHEDULES or (text != name and not (name == "interleaved" and re.fullmatch(r"[1-9]\d?", stages))):
        listed = ", ".join(_SCHEDULES)
        raise argparse.ArgumentTypeError(f"{shown(text)} is not one of {listed}, or interleaved:4")
    return name, int(stages or 2)


def _powers(text: str) -> list[float] | Path:
    try:
        return [float(entry) for entry in text.split(",")]
    except ValueError:
        if Path(text).is_file():
            return Path(text)
        raise argparse.ArgumentTypeError(
            f"{shown(text)} is not a power in watts, or one for each stage, or a file: 80 or 80,75 or p2p.csv"
        ) from None


def _counts(text: str) -> list[int]:
    return [count(entry) for entry in text.split(",")]


def _example_profile(gpus: int | list[int]) -> PipelineProfile:
    """Return the profile `gpt3-like`: eight stages of a large language model on GPUs of 400 W.

    The power rises with the clock linearly at first, then with its cube, as on GPUs.
    """
    from zeus_core.pipeline import PipelineProfile
    from zeus_core.pipeline.planner.clock_options import MeasuredOption
    from zeus_core.pipeline.planner.pipeline_profile import InstructionProfile

    profiles = []
    for stage, weight in enumerate(_WEIGHTS):
        for kind, usual_seconds in _SECONDS.items():
            options = []
            for clock in _CLOCKS_MHZ:
                ratio = clock / _CLOCKS_MHZ[0]
                time = weight * usual_seconds * (_BOUND_BY_CLOCK[kind] / ratio + 1 - _BOUND_BY_CLOCK[kind])
                watts = _IDLE_WATTS + (_WORK_WATTS - _IDLE_WATTS) * (0.3 * ratio + 0.7 * ratio**3)
                options.append(MeasuredOption(clock, round(time, 6), round(watts * time, 4)))
            profiles.append(InstructionProfile(stage, kind, tuple(options)))
    return PipelineProfile(profiles, _IDLE_WATTS, gpus)
