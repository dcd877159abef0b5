"""Random calls of the public interface: arguments as they should be, mixed with anything else that Python has.

Objects that have every attribute (mocks) are not among them: they are what they pretend to be, and their faults theirs.
"""

import decimal
import enum
import fractions
import importlib
import inspect
import math
import re
import runpy
import sys
from functools import cache
from pathlib import Path

import numpy as np

from tests.pipeline.planner.instances import smooth_profile
from zeus_core import errors
from zeus_core.device import SimulatedGpu, SimulatedNoise, Work, discover_cpus, find_preset
from zeus_core.errors import UsageError
from zeus_core.measurement import Device, DeviceEnergy, Measurement
from zeus_core.mixed.allocation import DeviceProfile
from zeus_core.mixed.allocation._fit import MeasuredBatch
from zeus_core.mixed.allocation.allocation_plan import AllocationPlan
from zeus_core.mixed.allocation.device_options import DeviceOption, DeviceOptions
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer import (
    GlobalPowerLimitOptimizer,
    PipelineFrequencySettings,
    PipelineRank,
    ZeusCost,
)
from zeus_core.pipeline import Frontier, make_plan, schedules
from zeus_core.pipeline.planner.clock_options import MeasuredOption
from zeus_core.pipeline.planner.pipeline_profile import InstructionProfile
from zeus_core.ports.time_source import MonotonicTime
from zeus_core.ports.world import SoloWorld
from zeus_core.search import Trial
from zeus_core.testing import VirtualTime


class Raising:
    """Raises whatever it is asked."""

    def _refuse(self, *_):
        raise RuntimeError("an object that answers nothing")

    __repr__ = __str__ = __len__ = __bool__ = __eq__ = __hash__ = __iter__ = _refuse
    __index__ = __int__ = __float__ = __fspath__ = __getitem__ = __contains__ = __lt__ = __call__ = _refuse


class EmptyName(str):
    """A text whose class says nothing."""

    def __repr__(self):
        raise ValueError("no representation")


@cache
def nested(kind):
    value = kind()
    for _ in range(100_000):
        value = [value] if kind is list else {"a": value}
    return value


def recursive():
    value = []
    value.append(value)
    return value


# Each makes a new value, as some can be used only once. No path in it may lead to a file of the machine.
STRANGE = [
    *(
        lambda value=value: value
        for value in (
            *(None, True, False, 0, 1, 2, -1, 3.5, -0.5, math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324),
            *(
                10**400,
                -(10**30),
                2**63,
                complex(1, 2),
                "",
                "x",
                "0",
                "nan",
                "torch",
                "a/b",
                "\0",
                "\ud800",
                "x" * 5000,
            ),
            *(b"", b"bytes", int, str, object, UsageError, len, sys, NotImplemented, ..., range(3), range(10**15)),
            *(decimal.Decimal("nan"), decimal.Decimal("sNaN"), fractions.Fraction(1, 3)),
            *(
                np.int64(1),
                np.float32("nan"),
                np.bool_(True),
                np.str_("x"),
                np.array([1, 2]),
                np.array([]),
                np.array(1),
            ),
            *(Path("x"), Path("folder"), Path("\0"), (), (1, 2), frozenset({1}), slice(1)),
        )
    ),
    *(
        lambda kind=kind, content=content: kind(content)
        for kind in (list, iter)
        for content in ((), (0,), (0, 0), (None,), ("0",), (True,), (-1,), (math.nan,), ((),), (1, "x"), (0,) * 10_000)
    ),
    *(dict, set, object, Raising, lambda: EmptyName("x"), lambda: Raising, recursive),
    *(
        lambda: {"a": 1},
        lambda: {0: 0},
        lambda: {None: None},
        lambda: {(): 1},
        lambda: nested(list),
        lambda: [Raising()],
    ),
    *(lambda: nested(dict), lambda: (number for number in (0,)), lambda: lambda: None, lambda: lambda *_: 1),
    *(lambda: ValueError("an error"), lambda: {"gpu_energy": Raising()}, lambda: np.array([Raising()], dtype=object)),
]

PROFILE = smooth_profile(2, clocks=4)
SCHEDULE = schedules.one_f_one_b(2, 2)
FRONTIER = Frontier.from_profile(PROFILE, SCHEDULE)
PROBLEM = FRONTIER.problem
PLAN = make_plan(FRONTIER, slowdown_factor=1.1)
MEASUREMENT = Measurement.from_energies(1.0, {0: 100.0})
LOST = Measurement.from_energies(1.0, {0: None})
TRIAL = Trial(200, 10, MEASUREMENT)
OPTIONS = (MeasuredOption(1410, 0.1, 40.0), MeasuredOption(1200, 0.12, 36.0))
WORK = Work(0.1, 300.0)
DEVICE = DeviceOptions("A40", (DeviceOption(250, 0.01, 0.001, 230.0), DeviceOption(200, 0.01, 0.002, 180.0)), 60.0)
MEASURED = [MeasuredBatch(250, 8, 0.02, 230.0), MeasuredBatch(250, 16, 0.03, 230.0)]
DEVICE_PROFILE = DeviceProfile("A40", tuple(MEASURED), 60.0)
ALLOCATION = AllocationPlan.from_shares("by hand", [DEVICE] * 2, [8, 8], [250, 200])


def gpu():
    return SimulatedGpu(find_preset("A40"), time_source=VirtualTime())


def monitor():
    return ZeusMonitor(gpus=[gpu()], time_source=VirtualTime())


def cpus():
    return discover_cpus(Path("folder"))


# By the name of the parameter, or of the callable and the parameter.
GOOD = {
    "gpu_indices": [None, [0], [], (0,), np.array([0])],
    "cpu_indices": [None, []],
    "log_file": ["log.csv", Path("folder/log.jsonl")],
    "sync_execution_with": ["torch", "jax"],
    "gpus": [lambda: [gpu()], lambda: (gpu(), gpu())],
    "PipelineProfile.gpus": [1, [1, 2]],
    "from_csv.gpus": [1, [1, 2]],
    "cpus": [cpus],
    "CpuDiscovery.cpus": [()],
    "time_source": [VirtualTime, MonotonicTime],
    "VirtualTime.start_seconds": [0.0],
    "synchronize": [lambda: lambda _: None],
    "monitor": [monitor],
    "gpu": [gpu],
    "preset": [lambda: find_preset("A40")],
    "model": ["A40", "A100-SXM4-80GB"],
    "gpu_model": ["A40"],
    "power_limit_watts": [200, 250.5],
    "noise": [SimulatedNoise],
    "step_watts": [25],
    "original_mhz": [None],
    "optimizer": [None, lambda: GlobalPowerLimitOptimizer(monitor())],
    "world": [SoloWorld],
    "folder": ["folder", Path("folder")],
    "optimum_selector": [None],
    "profile_path": ["profile.json", None],
    "plan_path": [None, "plan.json"],
    "pipeline_rank": [lambda: PipelineRank(0)],
    "settings": [PipelineFrequencySettings],
    "GridSearch.settings": [[300, 200]],
    "AdaptiveSearch.settings": [[300, 200]],
    "selector": [ZeusCost],
    "knob": ["clock"],
    "prior": [None],
    "identity": [None, {"a": 1}],
    "measurement": [MEASUREMENT, LOST],
    "measurements": [[MEASUREMENT, LOST], []],
    "trial": [TRIAL],
    "before": [TRIAL],
    "after": [TRIAL],
    "trials": [[TRIAL], []],
    "devices": [MEASUREMENT.devices, {}, {Device("cpu", 0, "x"): DeviceEnergy(1.0, 0.1)}],
    "fields": [MEASUREMENT.to_json()],
    "document": [PROFILE.to_json()],
    "gpu_energy": [{0: 1.0}, {0: None}],
    "time": [1.0],
    "seconds": [1.0],
    "active_power_watts": [300.0],
    "active_fraction": [0.9],
    "profile": [PROFILE],
    "schedule": [SCHEDULE],
    "problem": [PROBLEM],
    "frontier": [FRONTIER],
    "plan": [PLAN, ALLOCATION],
    "plans": [[PLAN], []],
    "chosen": [PLAN.options(PROBLEM)],
    "instructions": [lambda: [InstructionProfile(0, kind, OPTIONS) for kind in ("forward", "backward")]],
    "options": [OPTIONS],
    "DeviceOptions.options": [DEVICE.options],
    "DeviceProfile.points": [MEASURED],
    "keep_profile.profile": [DEVICE_PROFILE],
    "from_json.document": [PROFILE.to_json(), DEVICE_PROFILE.to_json()],
    **{f"{name}.knob": ["power limit", "SM clock"] for name in ("DeviceOptions", "DeviceProfile", "kept_profile")},
    "AllocationPlan.ranks": [ALLOCATION.ranks],
    "RankShare.knob": ["power limit"],
    **{
        f"{name}.devices": [[DEVICE] * 2]
        for name in ("from_shares", "allocate", "level", "even_plan", "proportional_plan")
    },
    "level.batches": [[8, 8], (1, 0)],
    "global_batch": [1, 16, 10**9],
    "objective": [None, ZeusCost()],
    "budget_watts": [None, 400],
    "from_shares.batches": [[8, 8]],
    "from_shares.settings": [[250, 200]],
    "fixed_seconds": [0.01, -0.01],
    "seconds_per_sample": [0.001, 0],
    "power_watts": [200.0],
    "floor_seconds": [0.0, 0.05],
    "measured_batches": [(1, 8), [1, 1]],
    "kind": ["forward"],
    "stage": [0, 1],
    "stages": [2],
    "ranks": [2, 4],
    "Schedule.ranks": [SCHEDULE.ranks],
    "from_instruction_lists.ranks": [SCHEDULE.ranks],
    "microbatches": [2, 4],
    "blocking_power_watts": [80.0, [80.0, 70.0]],
    "time_seconds": [0.5, 1.0],
    "path": ["file.json", Path("profile.csv"), "plan.json", "picture.svg"],
    "root": [Path("folder")],
    "environment": [{"ZEUS_SIMULATED_GPUS": "A40"}, {}, {"ZEUS_SIMULATED_GPUS": "A40:9999999"}],
    "world_size": [1],
    "work": [{(0, "forward"): WORK}],
    "layout": ["sysfs"],
    "arguments": [["--version"], ["plan"], ["devices", "--json"], ["power", "--count", "1"]],
    "module": ["numpy"],
    "size": [2],
    "rank_main": [lambda: lambda world: world.gather(1)],
    "timeout_seconds": [1.0],
    "device": ["cpu"],
    "run_name": ["run"],
    "logging_dir": ["folder"],
    "forward": [WORK],
    "backward": [None, WORK],
    "batches": [[4], [3, 1]],
    "UnevenBatches.model": [lambda: __import__("torch").nn.Linear(2, 1)],
    "MicroBatches.model": [lambda: __import__("torch").nn.Linear(2, 1)],
    "loss_of": [lambda: lambda batch: batch.sum()],
    "micro_batch": ["auto", 8, None],
    "max_probes": [6],
    "probe_seconds": [0.5],
    "samples": [32],
    "half_samples": [6.0],
}

PUBLIC = runpy.run_path(str(Path(__file__).parents[2] / "tools" / "public_api.py"))["PUBLIC"]


def callables(packages, skip=()):
    """Yield the name and the object of each public constructor, class method, static method and function."""
    for name in PUBLIC:
        if name.startswith(tuple(packages)) and not name.startswith(tuple(skip)):
            module = importlib.import_module(name)
            for public in module.__all__:
                yield from _of(public, getattr(module, public))


def _of(name, value):
    if inspect.isfunction(value):
        yield name, value
    if not isinstance(value, type) or issubclass(value, enum.Enum | BaseException):
        return
    is_for_us = any(
        parameter.name.startswith("_") or str(parameter.annotation).startswith("_")
        for parameter in _parameters(value).values()
    )
    if not getattr(value, "_is_protocol", False) and not inspect.isabstract(value) and not is_for_us:
        yield name, value
    for member, found in vars(value).items():
        if not member.startswith("_") and isinstance(found, classmethod | staticmethod):
            yield member, getattr(value, member)


def _parameters(function):
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}


def random_call(name, function, random):
    """Return arguments for a call: each is good, or strange, or left out."""
    arguments = {}
    for parameter in _parameters(function).values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            continue
        is_optional = parameter.default is not parameter.empty
        choice = random.random()
        if is_optional and choice < 0.4:
            continue
        good = GOOD.get(f"{name}.{parameter.name}", GOOD.get(parameter.name, ()))
        if is_optional:
            good = [*good, parameter.default]
        if good and choice < 0.75:
            value = random.choice(good)
            arguments[parameter.name] = value() if callable(value) and parameter.default is not value else value
        else:
            arguments[parameter.name] = random.choice(STRANGE)()
    return arguments


def documented_errors(function):
    """Return ours, and those that the documentation of a callable names."""
    documentation = inspect.getdoc(function) or ""
    _, _, raises = documentation.partition("Raises:\n")
    named = re.findall(r"^ +(\w+): ", raises, re.MULTILINE)
    builtin = [
        vars(__builtins__ if inspect.ismodule(__builtins__) else type("", (), __builtins__)).get(one) for one in named
    ]
    return (errors.ZeusError, *(one for one in builtin if isinstance(one, type) and issubclass(one, BaseException)))
