"""Share a global batch among devices that differ, and choose the setting of each.

    from zeus_core.mixed.allocation import DeviceOption, DeviceOptions, allocate, write_plan

    fast = DeviceOptions("fast", (DeviceOption(300, 0.01, 0.001, 280.0), DeviceOption(200, 0.01, 0.0012, 190.0)), 70.0)
    slow = DeviceOptions("slow", (DeviceOption(250, 0.01, 0.002, 240.0), DeviceOption(150, 0.01, 0.0025, 145.0)), 50.0)
    plan = allocate([fast, slow], global_batch=120)
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
