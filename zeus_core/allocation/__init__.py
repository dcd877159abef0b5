"""Share a global batch among devices that differ, and choose the setting of each.

    from zeus_core.allocation import AllocationPlan, DeviceOption, DeviceOptions, read_plan, write_plan

    fast = DeviceOptions("fast", (DeviceOption(300, 0.01, 0.001, 280.0),), blocking_power_watts=70.0)
    slow = DeviceOptions("slow", (DeviceOption(250, 0.01, 0.002, 240.0),), blocking_power_watts=50.0)
    plan = AllocationPlan.from_shares("by hand", [fast, slow], batches=[80, 40], settings=[300, 250])
    write_plan(plan, "allocation.json")

Pure: no device, no time source, no framework.
"""

from zeus_core.allocation._options import DeviceOption, DeviceOptions
from zeus_core.allocation._plan import AllocationPlan, RankShare
from zeus_core.allocation._plan_file import read_plan, write_plan

__all__ = ["AllocationPlan", "DeviceOption", "DeviceOptions", "RankShare", "read_plan", "write_plan"]
