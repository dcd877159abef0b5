"""`zeus-core plan`: plan the clocks of a training pipeline from a measured profile."""

from __future__ import annotations

import argparse
import csv
import importlib.util
import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from zeus_core._files import parse_json, write_atomically
from zeus_core.cli._arguments import count, factor, path, seconds, seconds_or_zero
from zeus_core.cli._text import write
from zeus_core.errors import UsageError

if TYPE_CHECKING:
    from zeus_core.pipeline import Frontier, PipelineProfile, Plan, Schedule

__all__ = ["SUMMARY", "add_arguments", "execute"]

SUMMARY = "Plan the clocks of a training pipeline from a measured profile"

_SCHEDULES = ("1f1b", "gpipe", "interleaved", "zb-h1", "zbv")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("profile", type=path, help="CSV (stage,instruction,frequency,time,energy) or JSON")
    parser.add_argument("--microbatches", type=count, required=True, metavar="N", help="microbatches of an iteration")
    parser.add_argument("--output", type=path, required=True, metavar="FOLDER", help="folder for frontier and plan")
    parser.add_argument("--schedule", choices=_SCHEDULES, default="1f1b", help="order of the instructions (1f1b)")
    parser.add_argument("--stages-per-rank", type=count, default=2, metavar="N", help="for `interleaved` (2)")
    parser.add_argument(
        "--blocking-power",
        type=_numbers,
        metavar="WATTS",
        help="power of a GPU that waits, for all stages or for each: 80 or 80,75; for CSV",
    )
    parser.add_argument("--gpus", type=count, default=1, metavar="N", help="GPUs that share each stage; for CSV (1)")
    parser.add_argument(
        "--device", metavar="MODEL", help="check that this GPU supports the clocks, such as A100-SXM4-80GB"
    )
    picked = parser.add_mutually_exclusive_group()
    picked.add_argument("--slowdown", type=factor, metavar="FACTOR", help="over the highest clocks (1: none)")
    picked.add_argument("--time", type=seconds, metavar="SECONDS", help="the longest iteration time")
    picked.add_argument(
        "--straggler", type=seconds, metavar="SECONDS", help="time of another pipeline that this one waits for"
    )
    parser.add_argument(
        "--switch-seconds", type=seconds_or_zero, default=0.0, metavar="SECONDS", help="duration of a clock switch"
    )
    parser.add_argument(
        "--dwell-seconds", type=seconds_or_zero, default=0.0, metavar="SECONDS", help="shortest time between switches"
    )
    parser.add_argument("--pictures", choices=("svg", "png", "none"), default="svg", help="their format (svg)")


def execute(arguments: argparse.Namespace) -> int:
    """Plan, print a comparison, and write the files."""
    from zeus_core.pipeline import Frontier, baselines, make_plan, write_plan
    from zeus_core.report._pipeline import plan_table

    profile = _read_profile(arguments)
    frontier = Frontier.from_profile(profile, _schedule(arguments, profile.stages))
    plan = make_plan(
        frontier,
        time_seconds=arguments.time,
        straggler_seconds=arguments.straggler,
        slowdown_factor=arguments.slowdown or (None if arguments.time or arguments.straggler else 1.0),
        switch_seconds=arguments.switch_seconds,
        dwell_seconds=arguments.dwell_seconds,
    )
    before = baselines.highest_clocks_plan(frontier.problem)
    try:
        arguments.output.mkdir(parents=True, exist_ok=True)
        write_plan(plan, arguments.output / "plan.json")
        _write_frontier(frontier, arguments.output / "frontier.csv")
        _draw(arguments, frontier, [before, plan])
    except OSError as error:
        raise UsageError(f"--output is {str(arguments.output)!r}, which cannot be written: {error}") from error
    write(plan_table([before, plan], frontier), sys.stdout)
    write(f"T_min {frontier.shortest_seconds:.4f} s, T* {frontier.least_energy_seconds:.4f} s", sys.stdout)
    write(f"written to {arguments.output}", sys.stdout)
    return 0


def _read_profile(arguments: argparse.Namespace) -> PipelineProfile:
    from zeus_core.pipeline import PipelineProfile

    file: Path = arguments.profile
    if file.suffix == ".json":
        if arguments.blocking_power is not None:
            raise UsageError("--blocking-power is for CSV; a JSON profile holds its own")
        try:
            profile = PipelineProfile.from_json(parse_json(file.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:  # a UsageError is a ValueError too
            raise UsageError(f"the profile {file} cannot be read: {error}") from error
    elif arguments.blocking_power is None:
        raise UsageError("a CSV profile lacks the power of a GPU that waits; give --blocking-power, such as 80")
    else:
        powers = arguments.blocking_power
        profile = PipelineProfile.from_csv(file, powers[0] if len(powers) == 1 else powers, arguments.gpus)
    if arguments.device is not None:
        from zeus_core.device import find_preset

        preset = find_preset(arguments.device)
        profile.check_clocks(range(preset.lowest_clock_mhz, preset.highest_clock_mhz + 1, preset.clock_step_mhz))
    return profile


def _schedule(arguments: argparse.Namespace, stages: int) -> Schedule:
    from zeus_core.pipeline import schedules

    name, microbatches = arguments.schedule, arguments.microbatches
    if name in ("1f1b", "gpipe", "zb-h1"):
        make = {"1f1b": schedules.one_f_one_b, "gpipe": schedules.gpipe, "zb-h1": schedules.zb_h1}[name]
        return make(stages, microbatches)
    per_rank = arguments.stages_per_rank if name == "interleaved" else 2
    if stages % per_rank:
        raise UsageError(f"the profile has {stages} stages, which {name} cannot divide as {per_rank} for each rank")
    if name == "zbv":
        return schedules.zbv(stages // per_rank, microbatches)
    return schedules.interleaved(stages // per_rank, microbatches, per_rank)


def _write_frontier(frontier: Frontier, path: Path) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("time_seconds", "energy_joules"))
    writer.writerows(zip(frontier.times_seconds.tolist(), frontier.energies_joules.tolist(), strict=True))
    write_atomically(path, text.getvalue())


def _draw(arguments: argparse.Namespace, frontier: Frontier, plans: list[Plan]) -> None:
    if arguments.pictures == "none":
        return
    if importlib.util.find_spec("matplotlib") is None:
        write("no pictures: drawing needs matplotlib: pip install 'zeus-core[plot]'", sys.stdout)
        return
    from zeus_core.report._pipeline import draw_frontier, draw_timelines

    draw_frontier(frontier, plans, arguments.output / f"frontier.{arguments.pictures}")
    draw_timelines(frontier.problem.profile, plans, arguments.output / f"timeline.{arguments.pictures}")


def _numbers(text: str) -> list[float]:
    try:
        return [float(entry) for entry in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a power in watts, or one for each stage: 80 or 80,75"
        ) from None
