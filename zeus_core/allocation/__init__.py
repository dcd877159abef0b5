"""Share a global batch among devices that differ, and choose the setting of each.

    from zeus_core.allocation import DeviceOption, DeviceOptions, allocate, write_plan

    fast = DeviceOptions("fast", (DeviceOption(300, 0.01, 0.001, 280.0), DeviceOption(200, 0.01, 0.0012, 190.0)), 70.0)
    slow = DeviceOptions("slow", (DeviceOption(250, 0.01, 0.002, 240.0), DeviceOption(150, 0.01, 0.0025, 145.0)), 50.0)
    plan = allocate([fast, slow], global_batch=120)
    plan.batches, plan.step_seconds, plan.energy_joules, plan.gap_fraction
    write_plan(plan, "allocation.json")

Pure: no device, no time source, no framework. docs/mixed-gpus.md explains the method.
"""

from zeus_core.allocation import baselines
from zeus_core.allocation._allocate import allocate
from zeus_core.allocation._fit import MeasuredBatch
from zeus_core.allocation._levelling import level
from zeus_core.allocation._options import DeviceOption, DeviceOptions
from zeus_core.allocation._plan import AllocationPlan, RankShare
from zeus_core.allocation._plan_file import read_plan, write_plan
from zeus_core.allocation._profile import DeviceProfile, keep_profile, kept_profile

__all__ = [
    "AllocationPlan",
    "DeviceOption",
    "DeviceOptions",
    "DeviceProfile",
    "MeasuredBatch",
    "RankShare",
    "allocate",
    "baselines",
    "keep_profile",
    "kept_profile",
    "level",
    "read_plan",
    "write_plan",
]
