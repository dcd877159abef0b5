"""Share a global batch among devices that differ, and choose the setting of each.

    from zeus_core.mixed.allocation import DeviceProfile, allocate, write_plan

    v100 = DeviceProfile.from_csv("v100.csv", "V100", blocking_power_watts=50)
    a40 = DeviceProfile.from_csv("a40.csv", "A40", blocking_power_watts=68)
    plan = allocate([v100.options(), a40.options()], global_batch=120)
    plan.batches, plan.step_seconds, plan.energy_joules, plan.gap_fraction
    write_plan(plan, "allocation.json")

Pure: no device, no time source, no framework. docs/mixed-gpus.md explains the method.
"""

from zeus_core.mixed.allocation._level import level
from zeus_core.mixed.allocation.allocating import allocate
from zeus_core.mixed.allocation.allocation_plan import write_plan
from zeus_core.mixed.allocation.device_profile import DeviceProfile

__all__ = [
    "DeviceProfile",
    "allocate",
    "level",
    "write_plan",
]
