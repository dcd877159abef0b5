"""The workload power profiles that a GPU is requested to keep to (Blackwell and later), as a set of them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from zeus_core.errors import NotSupportedError, UsageError
from zeus_core.kinds.kind import Kind
from zeus_core.validate import shown

# NVML_POWER_PROFILE_..., by id (nvml.h of CUDA 13). Later ones are shown by their number.
_NAMES = (
    *("MAX_P", "MAX_Q", "COMPUTE", "MEMORY_BOUND", "NETWORK", "BALANCED", "LLM_INFERENCE", "LLM_TRAINING", "RBM"),
    *("DCPCIE", "HMMA_SPARSE", "HMMA_DENSE", "SYNC_BALANCED", "HPC", "MIG"),
)
_MAX_Q, _BALANCED, _LLM_TRAINING = 1 << 1, 1 << 5, 1 << 7
_TRIED = (_LLM_TRAINING | _MAX_Q, _LLM_TRAINING, _BALANCED, _MAX_Q)
_ORIGINAL = 1 << 29  # marks the setting that is the original: above all others, as searches and selectors expect


class PowerProfile(Kind):
    """The requested profiles: bit i of a value stands for the profile with the id i.

    The settings of a search are the original, MAX_Q, LLM_TRAINING, both, and BALANCED, as far as a board supports them.
    They have no order: each is measured. A setting counts only if the board enforces it, which drops profiles that
    conflict with those of higher priority.
    """

    name: str = "power_profile"
    words: str = "power profile"
    unit: str = "profile"
    unit_name: str = "mask"
    option: str = words
    is_ordered = False
    needs_enforcement = True
    joins_auto = True
    tolerance: float = 0.5  # masks are the same, or not

    def read(self, gpu: Any) -> float:
        """Read the profiles requested last. Raises `NotSupportedError` for those that cannot be restored."""
        requested: int = _profiles(gpu).requested
        if requested >= _ORIGINAL:
            raise NotSupportedError(f"a power profile is requested that this version does not know: {requested:#x}")
        return float(requested)

    def read_default(self, gpu: Any) -> float:
        """Return 0: a driver that was loaded anew requests none, as far as is known."""
        return 0.0

    def read_enforced(self, gpu: Any) -> float:
        """Read the profiles that the board keeps to."""
        return float(_profiles(gpu).enforced % _ORIGINAL)

    def read_accepted(self, gpu: Any) -> Sequence[float]:
        """Read all profiles that the board supports, as one mask; and none."""
        return float(_profiles(gpu).supported % _ORIGINAL), 0.0

    def set(self, gpu: Any, value: float | None) -> None:
        """Request these profiles and no others."""
        gpu.set_power_profiles(int(value or 0))

    def command(self, uuids: Iterable[str], value: float | None) -> str:
        """Return a command of nvidia-smi, which adds to what is requested: the other profiles are cleared."""
        mask = _mask(value)
        words = [f"sudo nvidia-smi power-profiles -i {','.join(uuids)}"]
        for option, ids in (("-cr", _ids((_TRIED[0] | _BALANCED) & ~mask)), ("-sr", _ids(mask))):
            words += [option, ",".join(map(str, sorted(ids)))] if ids else []
        return " ".join(words)

    def text(self, value: float | None) -> str:
        """Return the names of the profiles."""
        names = [_NAMES[one] if one < len(_NAMES) else f"profile {one}" for one in sorted(_ids(_mask(value)))]
        return " + ".join(names) or "no profile"

    def check_accepted(self, value: float, accepted: Collection[float], gpu_name: str) -> None:
        """Raise `UsageError` for a profile that a board does not support."""
        if value != int(value) or int(value) & ~int(max(accepted)):
            raise UsageError(f"{gpu_name} does not support the {self.words} {self.text(value)}")

    def usable(self, gpu_name: str, accepted: Sequence[float], original: float | None) -> tuple[float, ...]:
        """Return the original, and the other values to try."""
        tried = [float(one) for one in _TRIED if not one & ~int(accepted[0]) and one != original]
        if original is None or not tried:
            raise NotSupportedError(f"{gpu_name} has no {self.words} for training")
        return original, *tried

    def common_settings(self, each: Iterable[Sequence[float]]) -> tuple[int, ...]:
        """Return the original, marked, and the values that all GPUs or ranks support."""
        first, *others = [tuple(map(int, values)) for values in each]
        original = max(values[0] for values in (first, *others)) | _ORIGINAL
        shared = set(first[1:]).intersection(*(values[1:] for values in others))
        return original, *sorted(shared, reverse=True)

    def value_of(self, setting: int, usable: Sequence[float]) -> float:
        """Return the value of a setting on a GPU with these values, its original first."""
        return usable[0] if setting >= _ORIGINAL else float(setting)

    def check(self, setting: int, settings: Sequence[int]) -> None:
        """Raise `UsageError` for a setting that is none of these."""
        if setting not in settings:
            raise UsageError(f"{shown(setting)} is none of the {self.words}s {', '.join(map(self.text, settings))}")

    @property
    def range_key(self) -> None:
        """None: no profile lies between two others."""
        return None

    def ceiling(self, original: float | None) -> float:
        """Return infinity: no profile is more than another."""
        return math.inf

    def is_enforced(self, value: float, enforced: float) -> bool:
        """Return whether all profiles of a value are among those that a board keeps to."""
        return not _mask(value) & ~_mask(enforced)

    def is_between(self, value: float, new: float, original: float) -> bool:
        """Return whether it is none: older drivers clear the profiles before they set others."""
        return value == 0


def _profiles(gpu: Any) -> Any:
    read = getattr(gpu, "read_power_profiles", None)
    if read is None:
        raise NotSupportedError(f"{getattr(gpu, 'name', gpu.uuid)} has no power profiles")
    return read()


def _mask(value: float | None) -> int:
    return int(value or 0) % _ORIGINAL


def _ids(mask: int) -> frozenset[int]:
    return frozenset(one for one in range(mask.bit_length()) if mask >> one & 1)


POWER_PROFILE = PowerProfile()
