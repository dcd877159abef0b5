"""The checks of `zeus-core doctor`. None changes anything."""

from zeus_core.cli.doctor.check import Check
from zeus_core.cli.doctor.gpus import check_gpus, find_gpus, gpu_remarks
from zeus_core.cli.doctor.limits import check_limits
from zeus_core.cli.doctor.nvidia import Driver, check_driver, find_driver, other_drivers
from zeus_core.cli.doctor.packages import check_extras, check_live_view, check_python, check_torch
from zeus_core.cli.doctor.rapl import check_rapl, still_cpus
from zeus_core.cli.doctor.residue import check_residue
from zeus_core.cli.doctor.rights import Rights, check_clock_rights, check_limit_rights, read_rights

__all__ = [
    "Check",
    "Driver",
    "Rights",
    "check_clock_rights",
    "check_driver",
    "check_extras",
    "check_gpus",
    "check_limit_rights",
    "check_limits",
    "check_live_view",
    "check_python",
    "check_rapl",
    "check_residue",
    "check_torch",
    "find_driver",
    "find_gpus",
    "gpu_remarks",
    "other_drivers",
    "read_rights",
    "still_cpus",
]
