"""The power limit of a GPU, in watts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from zeus_core._sysfs import is_card_uuid
from zeus_core._sysfs import limit_command as card_command
from zeus_core.errors import DeviceError, UsageError
from zeus_core.kinds.kind import Kind

_EXACT_WATTS = 0.01  # drivers count milliwatts
_LAPTOP = "Laptop GPU"  # in the names of NVIDIA's boards


class PowerLimit(Kind):
    """The limit that was requested last. The board may enforce a lower one, and may round."""

    name: str = "power_limit"
    words: str = "power limit"
    unit: str = "W"
    unit_name: str = "watts"
    option: str = words
    tolerance: float = 1.0  # administrators set whole watts, and some boards take a little less than requested
    max_rounding: float = 30.0  # boards that round limits do so in steps of 5 to 30 W
    fine_step = 5  # gains 0.9 to 1.9 % over 25 W
    coarse_step = 25
    has_curves = True
    binds_power = True
    lowers_sm_clock = True
    joins_auto = True
    is_usual = True
    is_allowed_unnamed = True

    def read(self, gpu: Any) -> float:
        """Read the limit requested last."""
        return float(gpu.read_power_limit_watts())

    def read_default(self, gpu: Any) -> float:
        """Read the limit that the driver begins with."""
        return float(gpu.read_default_power_limit_watts())

    def read_enforced(self, gpu: Any) -> float | None:
        """Read the limit that the board enforces; None if it does not report it."""
        try:
            return float(gpu.read_enforced_power_limit_watts())
        except DeviceError:
            return None

    def read_accepted(self, gpu: Any) -> Sequence[float]:
        """Read the highest and the lowest limit."""
        lowest_watts, highest_watts = gpu.read_power_limit_range_watts()
        return highest_watts, lowest_watts

    def set(self, gpu: Any, value: float | None) -> None:
        """Request a limit. Raises `DeviceError` where it is not known."""
        if value is None:
            raise DeviceError("the original power limit is not known")
        gpu.set_power_limit(value)

    def restore(self, gpu: Any, original: float | None) -> float | None:
        """Request the original, and as much more as a board takes less, if that is a fraction of a watt.

        Else each restoring would leave it lower than the one before. A board that rounds by more shows the same limit
        for the original each time, which is returned.

        An original outside the range of the board, which may have moved since, gives way to the default.
        """
        try:
            self.set(gpu, original)
        except UsageError:
            default_watts = self.read_default(gpu)
            self.set(gpu, default_watts)
            return default_watts
        if original is None:
            return None
        with contextlib.suppress(Exception):  # it was asked for, and the board shows what it takes for it
            missing_watts = original - gpu.read_power_limit_watts()
            if _EXACT_WATTS < missing_watts < self.tolerance:
                gpu.set_power_limit(original + missing_watts)
                if gpu.read_power_limit_watts() > original + _EXACT_WATTS:
                    gpu.set_power_limit(original)
            elif abs(missing_watts) >= self.tolerance:
                return float(original - missing_watts)
        return None

    def command(self, uuids: Iterable[str], value: float | None) -> str:
        """Return a command of nvidia-smi, or one that writes the files of the driver."""
        watts, cards = 0.0 if value is None else value, dict[bool, list[str]]()
        for uuid in uuids:
            cards.setdefault(is_card_uuid(uuid), []).append(uuid)
        return " && ".join((card_command if is_card else _smi_command)(some, watts) for is_card, some in cards.items())

    def refusal_by(self, gpu_name: str) -> str | None:
        """Return the reason for a board of a laptop."""
        if _LAPTOP not in gpu_name:
            return None
        return 'many laptops show a limit and take none: "auto" searches clocks there'

    @property
    def arguments(self) -> Mapping[str, int | str]:
        """The arguments that must be the same on all ranks, by name."""
        return {"knob": self.words, "pl_step": self.step}


def _smi_command(uuids: Iterable[str], limit_watts: float) -> str:
    return f"sudo nvidia-smi -i {','.join(uuids)} -pl {limit_watts:g}"


POWER_LIMIT = PowerLimit()
