"""`zeus-core allocate`: share a global batch among GPUs that differ, and choose the setting of each."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from zeus_core.cli.arguments import check_exists, count, number, path, slowdown
from zeus_core.cli.text import make_folder, write
from zeus_core.documents import parse_json
from zeus_core.errors import UsageError
from zeus_core.installed import install_command

if TYPE_CHECKING:
    from zeus_core.mixed.allocation import DeviceProfile
    from zeus_core.mixed.allocation.allocation_plan import AllocationPlan
    from zeus_core.mixed.allocation.device_options import DeviceOptions
    from zeus_core.optimizer.power_limit import Objective

PLACE = "Before a run", 34
SUMMARY = "Share a batch among GPUs that differ, and choose their settings"
EXAMPLE = "zeus-core allocate v100.csv a40.csv --gpus 2,2 --blocking-power 50,68 --global-batch 512 --slowdown 10%"

_MAX_RANKS = 10_000  # planned in some seconds
_MAX_ERROR_FRACTION = 0.1  # of a fit: above, the profile says little of a saving of some percent

_Value = TypeVar("_Value")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "profiles",
        type=path,
        nargs="+",
        metavar="PROFILE",
        help="a file for each GPU model: CSV (batch_size,power_limit,seconds,watts) or JSON",
    )
    parser.add_argument("--global-batch", type=count, required=True, metavar="N", help="samples of a step on all GPUs")
    parser.add_argument("--gpus", type=_counts, default=[1], metavar="N", help="GPUs of each model: 4 or 4,8 (1)")
    parser.add_argument(
        "--blocking-power",
        type=_powers,
        metavar="WATTS",
        help="power of a GPU that waits: 60, or 50,68 for each model; for CSV",
    )
    parser.add_argument(
        "--slowdown",
        type=slowdown,
        metavar="10%",
        help="the least energy within this much more time than the shortest step; energy and time alike if left out",
    )
    parser.add_argument("--level", action="store_true", help="keep equal batches, and choose settings alone")
    parser.add_argument(
        "--budget-watts", type=_watts, metavar="WATTS", help="sum of the power limits, with --level; shared for speed"
    )
    parser.add_argument("--output", type=path, metavar="FOLDER", help="folder for plan.json and a picture")


def execute(arguments: argparse.Namespace) -> int:
    """Plan, print a comparison, and write the files."""
    from zeus_core.mixed._allocation_report import allocation_table, shares_table

    devices = _devices(arguments)
    plan = _plan(arguments, devices)
    _warn_of_errors(devices, plan)
    plans = [*_baselines(arguments, devices), plan]
    if arguments.output is not None:
        _write_files(arguments, plans)
    write(allocation_table(plans), sys.stdout)
    write("", sys.stdout)
    write(shares_table(plan), sys.stdout)
    if arguments.output is not None:
        write(f"written to {arguments.output}", sys.stdout)
    return 0


def _objective(arguments: argparse.Namespace) -> Objective | None:
    from zeus_core.optimizer.power_limit import EnergyWithin, ZeusCost

    if arguments.slowdown is not None:
        return EnergyWithin(arguments.slowdown)
    return None if arguments.level else ZeusCost(0.5)  # None: steps as short as they are


def _plan(arguments: argparse.Namespace, devices: Sequence[DeviceOptions]) -> AllocationPlan:
    from zeus_core.mixed.allocation import allocate, level
    from zeus_core.mixed.allocation.allocating import even_plan

    objective = _objective(arguments)
    if not arguments.level:
        if arguments.budget_watts is not None:
            raise UsageError("--budget-watts needs --level: with free batches there is no budget yet")
        return allocate(devices, arguments.global_batch, objective)
    even = even_plan(devices, arguments.global_batch)
    return level(devices, even.batches, objective, budget_watts=arguments.budget_watts)


def _baselines(arguments: argparse.Namespace, devices: Sequence[DeviceOptions]) -> list[AllocationPlan]:
    """Return the plans to compare with, without those whose batches the devices do not hold."""
    from zeus_core.mixed.allocation.allocating import even_plan, proportional_plan

    plans = []
    for make in (even_plan, proportional_plan):
        try:
            plans.append(make(devices, arguments.global_batch, _objective(arguments)))
        except UsageError as error:
            _note(f"not compared: {error}")
    return plans


def _devices(arguments: argparse.Namespace) -> list[DeviceOptions]:
    for file in arguments.profiles:
        check_exists(file, "; give a profile of each model of GPU")  # before what else its use needs
    models = len(arguments.profiles)
    counts = _one_each("--gpus", arguments.gpus, models)
    if sum(counts) > _MAX_RANKS:
        raise UsageError(f"--gpus is {sum(counts)} in all; at most {_MAX_RANKS} can be planned for")
    devices = []
    for place, (file, gpus) in enumerate(zip(arguments.profiles, counts, strict=True)):
        devices += [_read_profile(arguments, file, place).options()] * gpus
    return devices


def _read_profile(arguments: argparse.Namespace, file: Path, place: int) -> DeviceProfile:
    from zeus_core.mixed.allocation import DeviceProfile

    if file.suffix == ".json":
        try:
            return DeviceProfile.from_json(parse_json(file.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:  # a UsageError is a ValueError too
            raise UsageError(f"the profile {file} cannot be read: {error}") from error
    if arguments.blocking_power is None:
        raise UsageError("a CSV profile lacks the power of a GPU that waits; give --blocking-power, such as 60")
    watts = _one_each("--blocking-power", arguments.blocking_power, len(arguments.profiles))[place]
    return DeviceProfile.from_csv(file, file.stem, watts)


def _warn_of_errors(devices: Sequence[DeviceOptions], plan: AllocationPlan) -> None:
    """Say so where measured steps are far off the fit of a chosen setting."""
    chosen = {(share.device, share.setting): device for device, share in zip(devices, plan.ranks, strict=True)}
    for (name, setting), device in chosen.items():
        option = device.option(setting)
        if max(option.time_error_fraction, option.energy_error_fraction) > _MAX_ERROR_FRACTION:
            _note(
                f"{name} at {setting}: measured steps are off their fit by {option.time_error_fraction:.0%} in time "
                f"and {option.energy_error_fraction:.0%} in energy; measure batches nearer to those planned"
            )


def _one_each(name: str, values: Sequence[_Value], models: int) -> Sequence[_Value]:
    if len(values) == 1:
        return [values[0]] * models
    if len(values) != models:
        raise UsageError(f"{name} has {len(values)} values, but there are {models} profiles")
    return values


def _write_files(arguments: argparse.Namespace, plans: Sequence[AllocationPlan]) -> None:
    from zeus_core.mixed.allocation import write_plan

    try:
        make_folder(arguments.output)
        write_plan(plans[-1], arguments.output / "plan.json")
        if importlib.util.find_spec("matplotlib") is None:
            _note(f"no picture: drawing needs matplotlib: {install_command('plot')}")
            return
        from zeus_core.mixed._allocation_report import draw_allocation

        shown_plans = [plans[0], plans[-1]] if len(plans) > 1 else plans
        draw_allocation(shown_plans, arguments.output / "allocation.svg")
    except OSError as error:
        raise UsageError(f"--output is {str(arguments.output)!r}, which cannot be written: {error}") from error


def _note(text: str) -> None:
    write(f"zeus-core: {text}", sys.stderr)


def _counts(text: str) -> list[int]:
    return [count(entry) for entry in text.split(",")]


def _powers(text: str) -> list[float]:
    return [_watts(entry) for entry in text.split(",")]


def _watts(text: str) -> float:
    return number(text, 0.0, 1e9, "is not a number of watts, 0 to 1e9, such as 60")
