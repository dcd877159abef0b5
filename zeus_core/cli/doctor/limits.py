"""The check of the power limits in force."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from zeus_core.cli.doctor.check import Check
from zeus_core.cli.text import readable
from zeus_core.settings.kinds import POWER_LIMIT

if TYPE_CHECKING:
    from zeus_core.device import Gpu

_NAME = POWER_LIMIT.words
_STAT = Path("/proc/stat")


def check_limits(gpus: Sequence[Gpu], stat: Path = _STAT) -> Check:
    """Check that the limits in force are the boards' defaults.

    Args:
        gpus: The visible GPUs.
        stat: The file in which the kernel writes when the machine was started.
    """
    lowered: list[str] = []
    commands: list[str] = []
    defaults = [readable(gpu.read_default_power_limit_watts) for gpu in gpus]
    for index, (gpu, default_watts) in enumerate(zip(gpus, defaults, strict=True)):
        requested_watts = readable(gpu.read_power_limit_watts)
        enforced_watts = readable(gpu.read_enforced_power_limit_watts)
        known = [limit_watts for limit_watts in (requested_watts, enforced_watts) if limit_watts is not None]
        if default_watts is None or not known or min(known) >= default_watts - POWER_LIMIT.tolerance:
            continue
        is_requested = requested_watts is not None and requested_watts < default_watts - POWER_LIMIT.tolerance
        reason = "as requested" if is_requested else "held down by firmware or another limiter"
        lowered.append(f"GPU {index}: {min(known):g} W of {default_watts:g} W, {reason}")
        if is_requested:
            commands.append(POWER_LIMIT.command([gpu.uuid], default_watts))
    if lowered:
        return Check(_NAME, "limited", f"{'; '.join(lowered)}; {_age(stat)}", " && ".join(commands) or None)
    known_defaults = sorted({default_watts for default_watts in defaults if default_watts is not None})
    if not known_defaults:
        has_clocks = any(readable(gpu.read_supported_sm_clocks_mhz) for gpu in gpus)
        hint = ', as on GB10 and many laptops: "auto" and `run --save` search clocks there' if has_clocks else ""
        return Check(_NAME, "missing", f"no visible GPU reports one{hint}")
    return Check(_NAME, "ok", f"the default, {' or '.join(f'{watts:g} W' for watts in known_defaults)}, is in force")


def _age(stat: Path) -> str:
    """Say what is known of the age of a limit: no driver records it."""
    words = "since when is not known: no driver records it, and a limit lasts until the driver is unloaded"
    try:
        found = re.search(r"^btime (\d+)$", stat.read_text(encoding="ascii", errors="replace"), re.MULTILINE)
    except OSError:
        return words
    if found is None:
        return words
    begin = time.strftime("%Y-%m-%d %H:%M", time.localtime(int(found[1])))
    return f"{words}; the machine was started at {begin}"
